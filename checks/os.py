"""Checks of the operating system against what the site demands."""

import re
from typing import Dict, Iterator, Optional, Tuple

from ddp_doctor import compat
from ddp_doctor.facts import Os, Reason
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.policy import Policy


@check(Severity.ERROR)
def below_minimum(os: Os, policy: Policy) -> Iterator[Reading]:
    """The operating system is older than the site's minimum.

    Why: The site supports its drivers, fabric software and containers from this release on; on an older one the kernel,
        glibc or driver stack is one that nobody there has tested. The stock policy has no minimum and accepts any current
        Linux.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/introduction.html
        https://man7.org/linux/man-pages/man5/os-release.5.html
    """
    distribution = known(os.id, os, "id")
    if policy.os_only_named and distribution not in policy.os_minimum:
        yield Reading(
            ok=False,
            measured=_name(os),
            expected="one of " + ", ".join(f"{id} >= {version}" for id, version in sorted(policy.os_minimum.items())),
            message="the site does not support this distribution",
        )
    else:
        yield _reading(os, policy.os_minimum, "older than the oldest release that the site supports")


@check(Severity.NOTE)
def below_recommended(os: Os, policy: Policy) -> Iterator[Reading]:
    """The operating system is older than the release that the site recommends.

    Why: The job runs, on a release that the site is about to leave: fixes to kernel, fabric software and drivers come to
        newer ones first.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/introduction.html
        https://man7.org/linux/man-pages/man5/os-release.5.html
    """
    if known(os.id, os, "id") in policy.os_recommended:
        yield _reading(os, policy.os_recommended, "older than the release that the site recommends")


@check(Severity.NOTE)
def end_of_life(os: Os, policy: Policy) -> Iterator[Reading]:
    """The operating system's release gets no more security fixes.

    Why: It works on, and new drivers, fabric software and Python packages stop supporting it one by one. Some distributions
        sell longer support. A container's image is not judged: the machine under it is what is out of date or not.
    See: https://endoflife.date/
    """
    version = os.version if os.container == "" else None
    row = compat.distribution(os.id or "", version, bool(os.stream)) if version else None
    free = row is not None and "(LTS)" in row.end_of_extended  # Debian's LTS is for everybody, others sell theirs
    last = (row.end_of_extended if free else row.end_of_life) if row else ""
    over = compat.ended(last, policy.age_day) if row else None
    if row and over is not None:
        longer = f"; paid support until {row.end_of_extended}" if row.end_of_extended and not free else ""
        yield Reading(
            ok=not over,
            measured=f"support of {row.distribution} {row.version} {'ended' if over else 'ends'} {last}"
            + (longer if over else ""),
            expected="a release that is supported",
            message=f"{_name(os)} gets no more fixes" + (" without paid support" if longer else ""),
            source=row.source2 or row.source,
        )


def _reading(os: Os, floors: Dict[str, str], message: str) -> Reading:
    """This distribution's version against its floor; a distribution without a floor is accepted."""
    floor = floors.get(os.id or "")
    if floor is None:
        return Reading(ok=True, measured=_name(os), expected="any current Linux")
    version = known(os.version, os, "version")
    ok = _at_least(version, floor, bool(os.stream))
    if ok is None:
        return Reading(
            ok=None, reason=Reason("not-applicable", f"{_name(os)} has no minor version to hold against {floor}")
        )
    return Reading(ok=ok, measured=_name(os), expected=f"{os.id} {floor} or later", message=message)


def _at_least(version: str, floor: str, stream: bool) -> Optional[bool]:
    """Is ``version`` at least ``floor``? None where it is less precise: CentOS Stream has no minor version."""
    ours, least = _numbers(version), _numbers(floor)
    if stream and len(least) > 1:
        return None
    if len(ours) < len(least) and ours == least[: len(ours)]:
        return None
    return ours >= least


def _numbers(version: str) -> Tuple[int, ...]:
    """8.2.2004 -> (8, 2, 2004); what is not a number ends it."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _name(os: Os) -> str:
    """The most telling name: os-release of CentOS 8.2 says just "CentOS Linux 8"."""
    if os.version and os.pretty and os.version not in os.pretty:
        return f"{os.pretty} ({os.version})"
    return os.pretty or " ".join(filter(None, (os.id, os.version)))
