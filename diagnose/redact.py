"""Redaction at the door: what is not on an allow-list never reaches facts, recordings or reports."""

import re
from typing import Dict

HIDDEN = "<redacted>"

FAMILIES = re.compile(
    r"(NCCL|NCCLXFER|TORCH|TORCHELASTIC|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH|C10D|GLOO|TP|UCX|UCC|FI|RDMAV|IBV|MLX[45]|OFI"
    r"|AWS_OFI|EFA|OMP|MKL|KMP|GOMP|CUDA|CUBLAS|CUDNN|NVIDIA|MELLANOX|NVSHMEM|SHARP|HCOLL|HSA|HIP|ROCR|RCCL|SLURM|PMI|PMIX"
    r"|OMPI|MPI|MV2|I_MPI|LD|DDP_DOCTOR|RDZV|PET|MUSA|HOROVOD|DEEPSPEED|ACCELERATE|FSDP|TF32|TRITON)_\w+"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|NODE_RANK|NNODES|NPROC_PER_NODE|USE_LIBUV"
    r"|ENABLE_(INTRA_NODE_COMM|NCCL_HEALTH_CHECK)",
    re.ASCII,
)
"""Names that matter to distributed training, to be matched in full (issue, item 3 "env"). LOCAL_, ROLE_ and MASTER_
are too common elsewhere to be families: LOCAL_DB_URL is nobody's business."""

OTHERS = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LC_ALL VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONPATH PYTHONHOME "
    "PYTHONNOUSERSITE PYTHONUSERBASE PYTHONSTARTUP PYENV_VERSION HOSTNAME SSH_AUTH_SOCK SSH_CONNECTION SSH_TTY SUDO_USER container "
    "APPTAINER_CONTAINER SINGULARITY_CONTAINER KUBERNETES_SERVICE_HOST WSL_DISTRO_NAME NO_COLOR TERM COLUMNS TMPDIR "
    "XDG_RUNTIME_DIR "
    "http_proxy https_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY GRPC_PROXY grpc_proxy "
    "MPI_HOME MODULEPATH LOADEDMODULES PBS_JOBID LSB_JOBID JOB_ID GPU_DEVICE_ORDINAL CI".split()
)
"""Single names that collectors need."""

SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS(W|PHRASE|$|_)|PWD|CREDENTIAL|COOKIE|SIGNATURE|JWT|_PAT$|AUTH(?!_SOCK|ORITY)", re.IGNORECASE
)
"""What a name that holds a secret is made of: SLURM_JWT is Slurm's log-in token."""

_NOT_SECRET = re.compile(r"\w*_PKEY|OFI_NCCL_MR_KEY_SIZE", re.ASCII)
"""Names that only sound secret: the InfiniBand partition key's index, the size of a memory region's key, and the name
of a file (GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY)."""

_PATHS = re.compile(r"\w*(PATH|PREFIX|HOME|DIR|PRELOAD|FILE|MODULEFILES)|VIRTUAL_ENV|LD_\w+", re.ASCII)
"""Names whose values are paths, in which a long random-looking folder name is a store's hash, no secret."""

_USERINFO = re.compile(r"(?<=://)[^\s,]{1,1024}@|^[^@/\s:]+:(?!//)\S*@")
_PAIR = re.compile(
    r"((?:password|passwd|passphrase|pwd|token|secret|api_?key|access_?key|credential|signature|\bsig)[\w.-]{0,40}\s?[=:]\s?)"
    r"[^\s,;&|'\"]+",
    re.IGNORECASE,
)
_KNOWN_TOKEN = re.compile(
    r"\b(?:(?:gh[pousr]_|hf_|npm_)[A-Za-z0-9]{30,}|github_pat_\w{22,}|glpat-[\w-]{20,}|sk-(?!learn)[\w-]{20,}"
    r"|xox[abprs]-[\w-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|ya29\.[\w-]{20,}|eyJ[\w-]{8,}\.[\w.-]+)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*",
    re.ASCII,
)
"""What issued tokens look like: GitHub, Hugging Face, npm, GitLab, OpenAI, Slack, AWS, Google, JSON web tokens."""

_OPAQUE = re.compile(r"(?<![\w+=-])(?=[\w+=-]*[a-z])(?=[\w+=-]*[A-Z])(?=[\w+=-]*[0-9])[\w+=-]{32,}", re.ASCII)
"""Long runs of mixed letters and digits. 32 characters: 128 bits, the shortest key in use, are 22 characters of base64,
but people give jobs names of that length."""

_PLAIN = re.compile(r"(?:GPU|MIG|MIG-GPU)-[0-9a-fA-F-]{36}|0x[0-9a-fA-F]+")
"""Long runs that are no secrets: GPU UUIDs and the processor masks of SLURM_CPU_BIND."""


def variable(name: str, value: str) -> str:
    """Return ``value`` as it may be kept: hidden where the name sounds secret, else as ``text`` lets it through."""
    if SECRET.search(name) and not _NOT_SECRET.fullmatch(name):
        return HIDDEN
    kept = text(value)
    return kept if _PATHS.fullmatch(name) else _OPAQUE.sub(_unless_plain, kept)


def text(value: str) -> str:
    """Hide log-ins in addresses, ``password=...`` pairs and tokens of known issuers; the rest stays."""
    kept = _USERINFO.sub(HIDDEN + "@", value)
    kept = _PAIR.sub(lambda pair: pair.group(1) + HIDDEN, kept)
    return _KNOWN_TOKEN.sub(HIDDEN, kept)


def _unless_plain(found: "re.Match[str]") -> str:
    return found.group() if _PLAIN.fullmatch(found.group()) else HIDDEN


def kept(name: str) -> bool:
    """Is the variable ``name`` on the allow-list?"""
    return bool(FAMILIES.fullmatch(name)) or name in OTHERS


def environment(variables: Dict[str, str]) -> Dict[str, str]:
    """Keep the variables on the allow-list, each as ``variable`` lets it through."""
    return {name: variable(name, value) for name, value in sorted(variables.items()) if kept(name)}


def lines(document: str) -> str:
    """A file of NAME=value lines with each value as ``variable`` lets it through, and line numbers as they were.

    A name on no allow-list keeps its line and loses its value; what is not of this form is hidden, except comments'
    sign and blank lines: people comment out what they must not show. Lines are cut at LINE_LIMIT characters.
    """
    return "\n".join(_line(line[:LINE_LIMIT]) for line in document.split("\n"))


LINE_LIMIT = 4096
"""NCCL itself takes 1023 characters of a name and of a value (src/misc/param.cc)."""

_ASSIGNMENT = re.compile(r"(\s*(?:export\s+)?[\"']?)([A-Za-z_]\w*)(\s*=)(.*)", re.ASCII | re.DOTALL)


def _line(line: str) -> str:
    found = _ASSIGNMENT.fullmatch(line)
    if found:
        before, name, equals, value = found.groups()
        return f"{before}{name}{equals}{variable(name, value) if kept(name) else HIDDEN}"
    return "#" if line.startswith("#") else HIDDEN if line.strip() else line
