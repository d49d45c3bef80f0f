"""Remedies for what grows or jumps while a job runs."""

from typing import Iterator

from ddp_doctor.model import Remedy, Verdict, command, export, say


def gpu_memory_grows(finding: Verdict) -> Iterator[Remedy]:
    """Find what holds the memory."""
    see = "https://docs.pytorch.org/docs/stable/torch_cuda_memory.html"
    text = "Record a snapshot with torch.cuda.memory._record_memory_history() and look at it: it shows what holds on to what."
    yield Remedy("See what holds the memory", (say(text, see=see),))
    keep = say("Add up losses as numbers (loss.item() or loss.detach()), and clear caches between epochs.")
    yield Remedy("The usual causes", (keep,))
    conf = export("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", scope="this job")
    yield Remedy("If sequence lengths vary, the allocator may be fragmented", (conf,))


def host_memory_shrinks() -> Iterator[Remedy]:
    """Find the process that grows."""
    yield Remedy("See which process grows", (command("ps -eo pid,ppid,rss,comm --sort=-rss"),))
    text = "Fewer data loader workers, or data in arrays (NumPy, Arrow) rather than in Python lists that each worker copies."
    yield Remedy("Share what workers read", (say(text),))


def clock_was_set(finding: Verdict) -> Iterator[Remedy]:
    """One synchroniser, that slews."""
    text = "Let one synchroniser alone keep the clock (chronyd with makestep limited to its first updates), and nobody set it by hand."
    yield Remedy("Let the clock be kept gently", (command("timedatectl show-timesync --all"), say(text, who="root")))
