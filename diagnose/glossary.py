"""Words that someone who starts with distributed training need not know, each in half a sentence."""

import re
from typing import Dict, Optional, Set, Tuple

OWN_PYTHON = "ddp-doctor's own: neither an active environment nor python3 on PATH has torch"


def chosen_by(way: Optional[str]) -> str:
    """What chose the Python that is examined (``Torch.python_chosen_by``), in words."""
    return OWN_PYTHON if way == "own interpreter" else f"chosen by {way or 'default'}"


TERMS: Dict[str, str] = {
    "ACS": "access control of a PCIe switch: it may send what devices write to each other through the processor",
    "algbw": "bytes of the message over the time that the collective took (nccl-tests)",
    "busbw": "algbw scaled so that it compares with the speed of the wire, whatever the number of ranks (nccl-tests)",
    "c10d": "torch's own way by which the nodes of a job find each other",
    "CAP_IPC_LOCK": "the right to lock memory without a limit",
    "cgroup": "the kernel's group of processes that share limits, as a container or a job step",
    "compute mode": "how many processes a GPU lets in",
    "/dev/shm": "memory that processes of a node share as files",
    "DSCP": "the field of an IP header that tells a packet's priority",
    "ECC": "error correction in the GPU's memory",
    "GID": "an RDMA port's address; a port has several, of different types",
    "glibc": "the system's C library; programs built for a newer one do not start",
    "Gloo": "torch's communication library for CPUs",
    "GPUDirect RDMA": "network cards read and write GPU memory themselves",
    "HCA": "an RDMA network card",
    "fabric manager": "the service that sets up the NVSwitches of a machine",
    "IMEX": "NVIDIA's service by which machines of one rack share GPU memory over NVLink",
    "inode": "the entry that each file needs on a disk; they can run out before the space does",
    "IOMMU": "what gives devices addresses of their own for the machine's memory",
    "IPoIB": "ordinary network traffic over InfiniBand",
    "LID": "a port's address in an InfiniBand subnet, given by its subnet manager",
    "libibverbs": "the library by which programs use RDMA cards",
    "memlock": "how much memory a process may pin so that it is never swapped out",
    "MIG": "one GPU split into several smaller ones",
    "MTU": "the longest packet that an interface sends",
    "NCCL": "NVIDIA's library by which GPUs exchange data",
    "nofile": "how many files and sockets a process may have open",
    "NUMA": "memory and devices that are nearer to some of the processors than to others",
    "NVLink": "NVIDIA's direct link between GPUs",
    "NVML": "the library behind nvidia-smi",
    "NODE": "across the host bridges of one socket",
    "NVSwitch": "the chip that joins all GPUs of a board by NVLink",
    "P2P": "a GPU reading another one's memory directly",
    "peermem": "the kernel module that lets network cards read GPU memory",
    "PHB": "through the processor's own PCIe ports",
    "PIX": "over one PCIe switch, past the processor",
    "PXB": "over several PCIe switches, past the processor",
    "persistence": "the driver keeps GPUs awake that no program uses",
    "PFC": "priority flow control: Ethernet pauses one priority instead of losing its packets",
    "rank": "the number of one process of the job, 0 is the first",
    "RDMA": "network cards that read and write memory without the processor",
    "rendezvous": "how the processes of a job find each other when it starts",
    "RoCE": "RDMA over Ethernet",
    "row remap": "a GPU puts a spare row of its memory in place of a faulty one",
    "SRAM": "the caches and registers inside a GPU, as opposed to its large memory",
    "stratum": "how many steps a clock is away from a reference clock",
    "subnet manager": "the program that gives the ports of an InfiniBand network their addresses and routes",
    "SYS": "across the link between the sockets",
    "uverbs": "the device file by which a program drives an RDMA card",
    "WORLD_SIZE": "the number of processes of the job",
    "Xid": "an error number that the NVIDIA driver writes into the kernel's log",
}
"""Term -> meaning; found as written here (small words with a capital too), and with a plural s."""


def _pattern(term: str) -> str:
    return f"(?i:{re.escape(term)})" if term.islower() else re.escape(term)


_FINDER = re.compile(rf"(?<![\w/-])({'|'.join(map(_pattern, sorted(TERMS, key=len, reverse=True)))})s?(?![\w/-])")


def explained(text: str, seen: Set[str]) -> Tuple[str, ...]:
    """ "term: meaning" of the terms in ``text`` that are not in ``seen``, in their order; adds them to ``seen``."""
    found = (match if match in TERMS else match.lower() for match in _FINDER.findall(text))
    new = [term for term in dict.fromkeys(found) if term not in seen]
    seen.update(new)
    return tuple(f"{term}: {TERMS[term]}" for term in new)
