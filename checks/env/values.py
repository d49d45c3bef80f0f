"""Values of variables: can they be read, are they allowed, do they go together, do they have an effect?"""

import re
from typing import Iterator, List, NamedTuple, Optional

from ddp_doctor import nccl, variables
from ddp_doctor.checks.env._settings import (
    all_of,
    faults_or_pass,
    has_cloud_stack,
    in_table,
    number,
    one,
    said,
)
from ddp_doctor.facts import Env, Torch, Variable
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.tables import Setting
from ddp_doctor.units import seconds

IB_TIMERS = ("NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT")
ACK_TIMEOUT_UNIT_S = 4.096e-6
"""Unit of the local ACK timeout of a queue pair: 4.096 us x 2^NCCL_IB_TIMEOUT (NCCL's user guide; InfiniBand specification)."""
TORCH_TIMEOUT_S = 600.0
"""Default time limit of NCCL's collectives since torch 2.2; 1800 s before (torch.distributed documentation)."""


# --------------------------------------------------------------------------- what the reader makes of it


@check(Severity.WARNING)
def value_not_a_number(env: Env) -> Iterator[Reading]:
    """A variable that NCCL reads as a number holds something else.

    Why: NCCL takes the digits at the beginning and says nothing: true, yes and on are 0, 4M is 4, and 010 is 8 (octal). So
        NCCL_IB_DISABLE=true disables nothing.
    See: https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/misc/param.cc
    """

    def fault(variable: Variable, setting: Setting) -> Optional[Reading]:
        value = variables.misread(setting, variable.value)
        if not value:
            return None
        return Reading(
            ok=False,
            subject=variable.name,
            measured=f"{said(variable)}, which NCCL reads as {value}",
            expected="an integer" if setting.kind == "int" else "0 or 1",
            message=f"NCCL reads {variable.name}={variable.value} as {value}",
            source=setting.source,
        )

    yield from in_table(env, variables.is_number_of_nccl, fault)


@check(Severity.WARNING)
def value_not_allowed(env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """A variable has a value that it cannot have.

    Why: The library ignores it, takes another one or cuts it to its range, mostly without a word. NCCL_DEBUG=ERROR silences
        even warnings; NCCL_P2P_LEVEL=nvl is ignored, as these words must be in upper case.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    def fault(variable: Variable, setting: Setting) -> Optional[Reading]:
        if variables.is_allowed(setting, variable.value):
            return None
        default = variables.default(setting, variables.reader(setting, torch)[1])
        return Reading(
            ok=False,
            subject=variable.name,
            measured=said(variable),
            expected=f"{variables.allowed_words(setting)}; by default {default}",
            message=f"{variable.name} cannot be {variable.value}" + (f": {setting.note}" if setting.note else ""),
            source=setting.source,
        )

    yield from in_table(env, _is_bounded, fault)


def _is_bounded(setting: Setting) -> bool:
    """Is it one of NCCL's, a plug-in's, CUDA's or Gloo's with a list of values, and no check of its own?"""
    judged = setting.library.startswith("nccl") or setting.library in ("aws-ofi-nccl", "cuda", "gloo")
    return judged and bool(setting.allowed) and setting.kind != "list" and setting.name not in IB_TIMERS


@check(Severity.ERROR)
def torch_refuses_value(env: Env) -> Iterator[Reading]:
    """A variable of torch.distributed holds a text that makes it raise.

    Why: "Invalid value for environment variable" ends init_process_group on every rank. Booleans are y, yes, 1, t, true and n,
        no, 0, f, false; TORCH_DISTRIBUTED_DEBUG is OFF, INFO or DETAIL.
    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
        https://docs.pytorch.org/docs/stable/distributed.html
    """

    def fault(variable: Variable, setting: Setting) -> Optional[Reading]:
        if not variables.raises(setting, variable.value):
            return None
        words = variables.BOOLEAN_WORDS if setting.kind == "bool-words" else setting.allowed
        return Reading(
            ok=False,
            subject=variable.name,
            measured=said(variable),
            expected="an integer" if setting.kind == "int" else ", ".join(words),
            message=f"torch raises an exception at {variable.name}={variable.value}",
            source=setting.source,
        )

    yield from in_table(env, variables.can_raise, fault)


@check(Severity.ERROR)
def algorithm_unknown(env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """NCCL_ALGO or NCCL_PROTO names something that NCCL does not have.

    Why: From NCCL 2.24 on such a word ends the initialisation with an error; before, it was ignored.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo
    """
    found = [v for v in (one(env, "NCCL_ALGO"), one(env, "NCCL_PROTO")) if v is not None]
    if (nccl.version_of(torch) or nccl.NEWEST) >= (2, 24):
        yield from faults_or_pass(found, (_unknown_words(variable) for variable in found))


def _unknown_words(variable: Variable) -> Optional[Reading]:
    setting = variables.by_name()[variable.name]
    words = [word for word in _words(variable.value) if word.lower() not in map(str.lower, setting.allowed)]
    return (
        Reading(
            ok=False,
            subject=variable.name,
            measured=said(variable),
            expected=", ".join(setting.allowed),
            message=f"NCCL does not know {', '.join(words)} and will end with an error",
        )
        if words
        else None
    )


def _words(value: str) -> List[str]:
    """The words in "Ring,Tree", "^NVLS" and "allreduce:Ring;broadcast:^Tree"."""
    lists = (part.rpartition(":")[2].lstrip("^") for part in value.split(";"))
    return [word for part in lists for word in part.split(",") if word]


# --------------------------------------------------------------------------- InfiniBand's timers


@check(Severity.ERROR, several_nodes=True)
def ib_timer_out_of_range(env: Env) -> Iterator[Reading]:
    """NCCL_IB_TIMEOUT or NCCL_IB_RETRY_CNT is not in its range.

    Why: NCCL_IB_TIMEOUT is an exponent from 0 to 31, not seconds: the adapter gets its lowest bits, so that 1800 is 8 and means
        a millisecond. NCCL_IB_RETRY_CNT has three bits: 0 to 7.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-retry-cnt
    """
    found = [v for v in (one(env, name) for name in IB_TIMERS) if v is not None]
    yield from faults_or_pass(found, (_timer(variable) for variable in found))


def _timer(variable: Variable) -> Optional[Reading]:
    top = 31 if variable.name == "NCCL_IB_TIMEOUT" else 7
    value = nccl.integer(variable.value)
    if 0 <= value <= top:
        return None
    stored = value & top
    means = f", which means {seconds(_ack_timeout_s(stored)) if stored else 'no limit'}" if top == 31 else ""
    return Reading(
        ok=False,
        subject=variable.name,
        measured=f"{said(variable)}; the adapter gets {stored}{means}",
        expected=f"0 to {top}",
        message=f"{variable.name} is not in its range and will be taken for {stored}",
    )


@check(Severity.WARNING, several_nodes=True)
def ib_wait_too_long(env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """A broken InfiniBand link is reported later than the time limit of torch.distributed.

    Why: An adapter waits 4.096 us x 2^NCCL_IB_TIMEOUT for an answer, NCCL_IB_RETRY_CNT times. When that takes longer than the
        limit of a collective (10 minutes since torch 2.2, 30 before), the watchdog ends the job and nothing names the link. 0
        means for ever.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    variable = one(env, "NCCL_IB_TIMEOUT")
    exponent, retries = number(env, "NCCL_IB_TIMEOUT"), number(env, "NCCL_IB_RETRY_CNT")
    if variable is None or exponent is None or not 0 <= exponent <= 31:
        return
    tries = retries if retries is not None and 0 <= retries <= 7 else 7  # 7 is the default in every release
    limit_s = TORCH_TIMEOUT_S if variables.torch_at_least(torch, (2, 2)) else 3 * TORCH_TIMEOUT_S
    wait_s = _ack_timeout_s(exponent) * max(tries, 1)
    waits = f"{seconds(wait_s)} ({max(tries, 1)} times {seconds(_ack_timeout_s(exponent))})"
    yield Reading(
        ok=bool(exponent) and wait_s < limit_s,
        subject=variable.name,
        measured=f"{said(variable)}: {waits if exponent else 'no limit'}",
        expected=f"less than {seconds(limit_s)}, the time limit of torch.distributed",
        message="a broken link will show as a time-out of torch.distributed, without a word of the link",
    )


def _ack_timeout_s(exponent: int) -> float:
    return float(ACK_TIMEOUT_UNIT_S * 2**exponent)


# --------------------------------------------------------------------------- values that do not go together


@check(Severity.ERROR)
def networks_contradict(env: Env) -> Iterator[Reading]:
    """NCCL_NET asks for InfiniBand, which NCCL_IB_DISABLE switches off.

    Why: A network that NCCL_NET names must be there; NCCL then ends with an error instead of taking TCP.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net
        https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/plugin/net.cc
    """
    net, disable = one(env, "NCCL_NET"), one(env, "NCCL_IB_DISABLE")
    if net is not None and net.value.lower() == "ib":
        off = disable is not None and nccl.integer(disable.value) != 0
        yield Reading(
            ok=not off,
            subject="NCCL_NET",
            measured=said(net) + (f", {said(disable)}" if disable is not None else ""),
            expected="one of the two at most",
            message="NCCL is told to use InfiniBand and not to: it will end with an error",
        )


@check(Severity.WARNING)
def minimum_above_maximum(env: Env) -> Iterator[Reading]:
    """The least number of channels is set above the greatest.

    Why: NCCL takes the more restrictive one, so that what was meant to give it more channels does not.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-max-ctas
    """
    for low_name, high_name in (("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")):
        low, high = one(env, low_name), one(env, high_name)
        if low is not None and high is not None:
            yield Reading(
                ok=nccl.integer(low.value) <= nccl.integer(high.value),
                subject=low_name,
                measured=f"{said(low)}, {said(high)}",
                expected=f"{low_name} no greater than {high_name}",
                message=f"{low_name} is greater than {high_name}",
            )


@check(Severity.WARNING)
def old_and_new_name_differ(env: Env) -> Iterator[Reading]:
    """A variable is set by its old name and by its new one, with different values.

    Why: One of them is ignored, mostly the old one. torchrun itself sets TORCH_NCCL_ASYNC_ERROR_HANDLING=1.
    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    def fault(variable: Variable, setting: Setting) -> Optional[Reading]:
        new = one(env, setting.renamed_to) if setting.renamed_to else None
        if new is None or new.value == variable.value or variables.find(variable.name) is None or not variable.value:
            return None
        if setting.last and setting.library.startswith("nccl"):  # of another grammar, and no longer read
            return None
        return Reading(
            ok=False,
            subject=variable.name,
            measured=f"{said(variable)}, {said(new)}",
            expected=f"{new.name} alone",
            message=f"{variable.name} and {new.name}, which is its new name, say different things",
        )

    yield from in_table(env, lambda setting: bool(setting.renamed_to), fault)


# --------------------------------------------------------------------------- values without effect


class _Idle(NamedTuple):
    """A variable that has no effect while another one has, or has not, some value."""

    name: str
    other: str
    works_with: str
    """Regular expression of values of ``other`` with which it works, "" being unset."""
    why: str


_IDLE = (
    _Idle("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG", "(?i)info|trace", "it chooses among what NCCL_DEBUG=INFO prints"),
    _Idle("NCCL_DEBUG_FILE", "NCCL_DEBUG", ".+", "nothing is written while NCCL_DEBUG is not set"),
    _Idle("NCCL_IB_HCA", "NCCL_IB_DISABLE", r"|0+", "NCCL_IB_DISABLE switches the adapters off"),
    _Idle("NCCL_IB_HCA", "NCCL_NET", "(?i)|ib", "another network than NCCL's own InfiniBand is named"),
    _Idle("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "|0|[^1]+", "NCCL_P2P_DISABLE switches peer-to-peer off"),
    _Idle("NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_QPS_PER_CONNECTION", "[^01].*|1.+", "there is one queue pair only"),
    _Idle("NCCL_SOCKET_IFNAME", "NCCL_COMM_ID", "", "the address in NCCL_COMM_ID chooses the first interface"),
)


@check(Severity.NOTE)
def setting_without_effect(env: Env) -> Iterator[Reading]:
    """A variable has no effect, because of another one.

    Why: NCCL_DEBUG_SUBSYS chooses among what NCCL_DEBUG=INFO prints; with InfiniBand switched off its settings are idle. What
        the variable was set for does not happen.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    found = [(idle, one(env, idle.name)) for idle in _IDLE]
    present = [(idle, variable) for idle, variable in found if variable is not None]
    yield from faults_or_pass((v for _, v in present), (_idle(env, idle, v) for idle, v in present))


def _idle(env: Env, idle: _Idle, variable: Variable) -> Optional[Reading]:
    other = one(env, idle.other)
    if re.fullmatch(idle.works_with, other.value.strip() if other is not None else "") or has_cloud_stack(env):
        return None
    return Reading(
        ok=False,
        subject=variable.name,
        measured=f"{said(variable)}, {said(other) if other is not None else f'{idle.other} is not set'}",
        expected=f"{idle.other} to let it work, or no {idle.name}",
        message=f"{idle.name} has no effect: {idle.why}",
    )


@check(Severity.NOTE)
def not_for_this_job(env: Env) -> Iterator[Reading]:
    """A variable is set that a PyTorch job does not need or does not read.

    Why: NCCL_COMM_ID is for programs that start NCCL without a store, as PyTorch does not; it changes the interface that NCCL
        starts on. TP_SOCKET_IFNAME is read by TensorPipe's RPC alone, not by DDP or FSDP.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-comm-id
        https://docs.pytorch.org/docs/stable/rpc.html
    """
    messages = {
        "NCCL_COMM_ID": "PyTorch does not need NCCL_COMM_ID, which changes the interface that NCCL starts on",
        "TP_SOCKET_IFNAME": "TP_SOCKET_IFNAME is for torch.distributed.rpc; DDP and FSDP do not read it",
    }
    for variable in all_of(env):
        if variable.name in messages and variable.value:
            yield Reading(
                ok=False,
                subject=variable.name,
                measured=said(variable),
                expected="not set",
                message=messages[variable.name],
            )
