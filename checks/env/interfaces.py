"""Lists of interfaces and adapters, judged by their text alone; what they take on this node is judged by network and rdma."""

import re
from typing import Iterator, List, Optional, Tuple

from ddp_doctor import nccl
from ddp_doctor.checks.env._settings import faults_or_pass, one, said
from ddp_doctor.facts import Env, Network, Rdma, Torch, Variable
from ddp_doctor.model import Reading, Severity, check

_LISTS = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
_HCA = r"(mlx[45]|mthca|bnxt_re|hfi1|qedr|irdma|hns|erdma|mana|rxe|siw|efa)_?\w*(:\d.*)?|(roce|rdma)p\d\w*"
"""Names that kernel drivers and rdma-core give to RDMA devices; ibp65s0 can be a device and an interface."""
_INTERFACE = r"eth\d*|en[opsxPb]\w+|em\d+|bond\d+(\.\d+)?|ib\d+|hsn\d*|docker\d*|lo|br-\w+|veth\w*|team\d+|wl\w+"
"""Names that systemd, drivers and sites give to network interfaces."""


@check(Severity.WARNING)
def list_mark_misplaced(env: Env) -> Iterator[Reading]:
    """A list of interfaces or adapters has a mark or a blank where it belongs to a name.

    Why: One "^" and one "=" at the very beginning hold for the whole list, in this order; names are separated by commas alone.
        ^docker0,^lo still admits lo, and "eth0, eth1" has a name that begins with a blank: such names match nothing.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        https://github.com/NVIDIA/nccl-tests/issues/150
    """
    found = [v for v in (one(env, name) for name in _LISTS) if v is not None]
    yield from faults_or_pass(found, (_misplaced(variable) for variable in found))


def _misplaced(variable: Variable) -> Optional[Reading]:
    names = [token.name for token in nccl.parse_list(variable.value).tokens]
    wrong = [name for name in names if re.search(r"[\s;^=|*?]", name)]
    return (
        Reading(
            ok=False,
            subject=variable.name,
            measured=said(variable),
            expected="^ and = once at the beginning, names with commas between, no blanks",
            message=f"no name can match {', '.join(map(repr, wrong))}",
        )
        if wrong
        else None
    )


@check(Severity.ERROR)
def gloo_list_has_pattern(env: Env) -> Iterator[Reading]:
    """GLOO_SOCKET_IFNAME holds a pattern, where Gloo takes exact names only.

    Why: Gloo knows none of NCCL's marks: "^docker0" and "=eth0" are names to it, which no interface has, and it ends with "Unable
        to find address for".
    See: https://docs.pytorch.org/docs/stable/distributed.html
        https://github.com/pytorch/pytorch/blob/v2.4.0/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp
    """
    variable = one(env, "GLOO_SOCKET_IFNAME")
    if variable is not None:
        wrong = [name for name in nccl.gloo_names(env) if re.search(r"[\s;^=|*?]", name)]
        yield Reading(
            ok=not wrong,
            subject="GLOO_SOCKET_IFNAME",
            measured=said(variable),
            expected="exact names of interfaces, with commas between",
            message=f"Gloo looks for an interface that is really called {', '.join(map(repr, wrong))}",
        )


@check(Severity.WARNING, several_nodes=True)
def name_of_wrong_kind(env: Env, network: Optional[Network] = None, rdma: Optional[Rdma] = None) -> Iterator[Reading]:
    """An RDMA adapter is named where an interface is meant, or the other way round.

    Why: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME take names of network interfaces (ip link), NCCL_IB_HCA those of RDMA devices
        (ibv_devices). With a name of the other kind nothing is found: NCCL ends, or takes TCP.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    interfaces = [i.name for i in (network.interfaces if network is not None else None) or ()]
    devices = [d.name for d in (rdma.devices if rdma is not None else None) or ()]
    rules = (
        ("NCCL_SOCKET_IFNAME", _HCA, "network interfaces", interfaces),
        ("GLOO_SOCKET_IFNAME", _HCA, "network interfaces", interfaces),
        ("NCCL_IB_HCA", _INTERFACE, "RDMA devices", devices),
    )
    for name, pattern, kind, here in rules:
        variable = one(env, name)
        if variable is not None:
            tokens = [token.name for token in nccl.parse_list(variable.value).tokens]
            wrong = [t for t in tokens if re.fullmatch(pattern, t) and not any(x.startswith(t) for x in here)]
            yield Reading(
                ok=not wrong,
                subject=name,
                measured=said(variable),
                expected=f"names of {kind}",
                message=f"{', '.join(wrong)} does not look like one of the {kind} that {name} is about",
            )


@check(Severity.WARNING, several_nodes=True)
def exclusion_admits_loopback(env: Env, network: Optional[Network] = None) -> Iterator[Reading]:
    """NCCL_SOCKET_IFNAME excludes some interfaces and so admits the loopback interface.

    Why: By itself NCCL leaves lo and docker* out; a list of its own replaces that. ^docker0 admits lo, which comes first, and
        ranks on other nodes are given 127.0.0.1. Write ^docker,lo or leave the variable out.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        https://github.com/horovod/horovod/issues/700
    """
    variable, named = one(env, "NCCL_SOCKET_IFNAME"), nccl.socket_list(env)
    # With the interfaces known, network/loopback-chosen tells what really happens here.
    if variable is not None and named is not None and named.negated and not (network and network.interfaces):
        yield Reading(
            ok=not named.accepts("lo"),
            subject=variable.name,
            measured=said(variable),
            expected="lo among what is excluded",
            message="NCCL may take the loopback interface, which no other node can reach",
        )


@check(Severity.WARNING, several_nodes=True)
def prefix_takes_more(
    env: Env, network: Optional[Network] = None, rdma: Optional[Rdma] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """A name in a list takes more interfaces or adapters than the one that it names.

    Why: Without "=" at the beginning of the list names are prefixes: eth1 takes eth10, mlx5_1 takes mlx5_10 to mlx5_19, bond0
        takes bond0.100.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
        https://github.com/NVIDIA/nccl/issues/177
    """
    interfaces = [i.name for i in (network.interfaces if network is not None else None) or () if i.addresses]
    devices = [d.name for d in (rdma.devices if rdma is not None else None) or ()]
    lists = (
        ("NCCL_SOCKET_IFNAME", nccl.socket_list(env), interfaces),
        ("NCCL_IB_HCA", nccl.hca_list(env, nccl.version_of(torch)), devices),
    )
    for name, named, here in lists:
        variable = one(env, name)
        if variable is not None and named is not None and here and not named.exact:
            more = _taken_beside(named, here)
            yield Reading(
                ok=not more,
                subject=name,
                measured=said(variable) + (f" takes {', '.join(other for _, other in more)} too" if more else ""),
                expected='"=" at the beginning, where the names are meant exactly',
                message=f"{' and '.join(dict.fromkeys(one for one, _ in more))} is a prefix of other names here",
            )


def _taken_beside(named: nccl.NameList, here: List[str]) -> List[Tuple[str, str]]:
    """(name, other) where a token is the whole name of one thing here and the beginning of another's not named itself."""
    asked = {token.name for token in named.tokens}
    return [
        (token.name, other)
        for token in named.tokens
        if token.name in here
        for other in here
        if other not in asked and other.startswith(token.name)
    ]


@check(Severity.NOTE)
def interfaces_differ(env: Env) -> Iterator[Reading]:
    """NCCL and Gloo are told to use different interfaces.

    Why: That is allowed, and sensible where NCCL starts on InfiniBand and Gloo cannot; often one of the two was forgotten when
        the other was changed.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    No fix: which of them is right depends on the network.
    """
    variable, gloo, named = one(env, "NCCL_SOCKET_IFNAME"), one(env, "GLOO_SOCKET_IFNAME"), nccl.socket_list(env)
    if variable is not None and gloo is not None and named is not None:
        yield Reading(
            ok=any(named.accepts(name) for name in nccl.gloo_names(env)),
            subject="GLOO_SOCKET_IFNAME",
            measured=f"{said(variable)}, {said(gloo)}",
            expected="interfaces of one network",
            message="NCCL and Gloo use different interfaces",
        )
