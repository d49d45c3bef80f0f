"""Names of variables: do they exist, and does the installed library read them?"""

import difflib
from typing import Iterator, Optional

from ddp_doctor import variables
from ddp_doctor.checks.env._settings import (
    all_of,
    faults_or_pass,
    has_cloud_stack,
    in_table,
    is_rocm,
    one,
    said,
)
from ddp_doctor.facts import Env, Rdma, Torch, Variable
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.tables import Setting


@check(Severity.WARNING)
def name_nobody_reads(env: Env) -> Iterator[Reading]:
    """A variable is set that guides recommend and that never existed.

    Why: NCCL_SOCKET_TIMEOUT, NCCL_TIMEOUT, NCCL_IB_ENABLE and the like are in many scripts and in no release of NCCL: what
        they are meant to change stays as it is. The time limit of collectives is an argument of init_process_group.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
        https://docs.pytorch.org/docs/stable/distributed.html
    """

    def fault(variable: Variable, setting: Setting) -> Optional[Reading]:
        if setting.library != "none":
            return None
        instead = f"; use {setting.instead}" if setting.instead else ""
        return Reading(
            ok=False,
            subject=variable.name,
            measured=said(variable),
            expected=f"variables that NCCL reads{instead}",
            message=f"{variable.name} has never existed and changes nothing",
            source=setting.source,
        )

    yield from in_table(env, _has_releases, fault)


@check(Severity.WARNING)
def misspelt_name(env: Env) -> Iterator[Reading]:
    """The name of a variable is misspelt.

    Why: A variable that nobody reads changes nothing and gives no error. The name is one or two letters away from that of a
        real variable, which keeps its default.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    looked_at = [v for v in all_of(env) if variables.is_judged(v.name)]
    near = ((v, variables.closest(v.name)) for v in looked_at)
    yield from faults_or_pass(
        looked_at,
        (
            Reading(
                ok=False,
                subject=variable.name,
                measured=said(variable),
                expected=real,
                message=f"there is no variable {variable.name}; did you mean {real}?",
            )
            for variable, real in near
            if real
        ),
    )


@check(Severity.NOTE)
def unknown_name(env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """A variable of NCCL's, torch's or Gloo's families is not one of those that we know.

    Why: It may be of a newer release, of a plug-in or of a site's own software; if it is meant for NCCL itself it probably
        changes nothing. Families of clouds and plug-ins (NCCL_FASTRAK_*, NCCL_NET_*) are left alone.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    looked_at = [v for v in all_of(env) if variables.FAMILIES.fullmatch(v.name) and not variables.left_alone(v.name)]
    strange = [] if is_rocm(torch) else [v for v in looked_at if not variables.find(v.name)]
    yield from faults_or_pass(
        looked_at,
        (
            Reading(
                ok=False,
                subject=variable.name,
                measured=said(variable),
                expected="a variable of NCCL up to 2.30.7, torch up to 2.14, Gloo or a known plug-in",
                message=f"{variable.name} is not known{_similar(variable.name)}",
            )
            for variable in strange
            if not variables.closest(variable.name)
        ),
    )


def _similar(name: str) -> str:
    found = difflib.get_close_matches(name, list(variables.by_name()), n=1, cutoff=0.75)
    return f"; the most similar known name is {found[0]}" if found else ""


def _has_releases(setting: Setting) -> bool:
    """Is it of NCCL, torch.distributed, Gloo or a plug-in, of which we know who read it when, or that nobody did?"""
    return setting.library.startswith(("nccl", "pytorch", "gloo", "aws", "ucx")) or setting.library == "none"


@check(Severity.NOTE)
def name_newer_than_library(env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """A variable is set that the installed NCCL or torch does not read yet.

    Why: NCCL and torch get new variables with most releases; an older one ignores them without a word. Before torch 2.2 the
        variables called TORCH_NCCL_... now had no TORCH_ in front.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
        https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """

    def fault(variable: Variable, setting: Setting) -> Optional[Reading]:
        library, version = variables.reader(setting, torch)
        if not variables.not_yet(setting, version) or is_rocm(torch):
            return None
        here = ".".join(map(str, version))
        old = next((row.name for row in variables.by_name().values() if row.renamed_to == variable.name), "")
        return Reading(
            ok=False,
            subject=variable.name,
            measured=f"{said(variable)}, {library} {here}",
            expected=f"{library} {setting.since} or later" + (f", or {old}" if old else ""),
            message=f"{library} {here} does not read {variable.name}, which came with {setting.since}",
            source=setting.source,
        )

    yield from in_table(env, _has_releases, fault)


@check(Severity.NOTE)
def name_no_longer_read(env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """A variable is set that the installed NCCL or torch does not read any more.

    Why: Old guides and scripts carry it on; it changes nothing. NCCL_TREE_THRESHOLD and NCCL_IB_CUDA_SUPPORT went away with
        NCCL 2.5 and 2.4.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
        https://github.com/NVIDIA/nccl/issues/211
    """

    def fault(variable: Variable, setting: Setting) -> Optional[Reading]:
        library, version = variables.reader(setting, torch)
        if not variables.no_longer(setting, version) or is_rocm(torch):
            return None
        return Reading(
            ok=False,
            subject=variable.name,
            measured=said(variable),
            expected=setting.renamed_to or "no such variable",
            message=f"{library} later than {setting.last} does not read {variable.name}"
            + (f"; use {setting.renamed_to}" if setting.renamed_to else ""),
            source=setting.source,
        )

    yield from in_table(env, _has_releases, fault)


@check(Severity.NOTE)
def name_deprecated(env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """A variable is set by its old name.

    Why: It still works, with a warning, and is ignored as soon as the new name is set too: torchrun itself sets
        TORCH_NCCL_ASYNC_ERROR_HANDLING, so that NCCL_ASYNC_ERROR_HANDLING=0 does nothing below it.
    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    def fault(variable: Variable, setting: Setting) -> Optional[Reading]:
        if not setting.renamed_to or not setting.deprecated or is_rocm(torch) or has_cloud_stack(env):
            return None
        if setting.library == "pytorch" or not variables.deprecated_in(setting, torch):
            return None
        library, _ = variables.reader(setting, torch)
        since = "" if setting.deprecated == "current" else f" since {library} {setting.deprecated}"
        return Reading(
            ok=False,
            subject=variable.name,
            measured=said(variable),
            expected=setting.renamed_to,
            message=f"{variable.name} has been called {setting.renamed_to}{since}",
            source=setting.source,
        )

    yield from in_table(env, _has_releases, fault)


# --------------------------------------------------------------------------- libfabric


@check(Severity.NOTE)
def libfabric_provider_ignored(env: Env) -> Iterator[Reading]:
    """FI_PROVIDER=mlx is set, which does nothing for NCCL.

    Why: NCCL reads no FI_* variable. The provider mlx exists in Intel MPI's own libfabric only; upstream removed it in 2019.
        Fine for Intel MPI; with the EFA plug-in (aws-ofi-nccl), which does use libfabric, it hides EFA.
    See: https://ofiwg.github.io/libfabric/main/man/fi_provider.7.html
    """
    provider = one(env, "FI_PROVIDER")
    if provider is not None:
        yield Reading(
            ok=provider.value.lower() != "mlx",
            subject="FI_PROVIDER",
            measured=said(provider),
            expected="not relied upon for NCCL",
            message="FI_PROVIDER=mlx does not make NCCL use the InfiniBand adapters: it finds them by itself",
        )


@check(Severity.WARNING, several_nodes=True)
def libfabric_provider_hides_efa(env: Env, rdma: Rdma) -> Iterator[Reading]:
    """FI_PROVIDER keeps libfabric from the EFA adapters of this node.

    Why: The plug-in by which NCCL uses EFA (aws-ofi-nccl) looks for libfabric's provider efa. Without it NCCL takes TCP.
    See: https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md
    """
    provider = one(env, "FI_PROVIDER")
    efa = [device.name for device in known(rdma.devices, rdma, "devices") if device.driver == "efa"]
    if provider is not None and efa:
        named = provider.value.lower()
        yield Reading(
            ok=("efa" in named) != named.startswith("^"),
            subject="FI_PROVIDER",
            measured=f"{said(provider)}; EFA adapters {', '.join(efa)}",
            expected="efa, or not set",
            message="the EFA plug-in will not find the EFA adapters, and NCCL will take TCP",
        )
