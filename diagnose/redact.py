"""Redaction at the door: what is not on an allow-list never reaches facts, recordings or reports."""

import re
from typing import Dict

HIDDEN = "<redacted>"

FAMILIES = re.compile(
    r"^(NCCL|TORCH|PYTORCH|TORCHELASTIC|C10D|GLOO|UCX|UCC|FI|RDMAV|IBV|MLX[45]|OFI|OMP|MKL|KMP|GOMP|CUDA|CUBLAS|CUDNN|NVIDIA"
    r"|NVSHMEM|SHARP|HCOLL|HSA|HIP|ROCR|RCCL|SLURM|PMI|PMIX|OMPI|MPI|MV2|I_MPI|LD|RANK|WORLD|LOCAL|GROUP|ROLE|MASTER"
    r"|DDP_DOCTOR|AWS_OFI|EFA|RDZV|PET|MUSA|HOROVOD|DEEPSPEED|ACCELERATE|FSDP|TF32|TORCHINDUCTOR|TRITON)(_|$)"
)
"""Names that matter to distributed training (issue, item 3 "env")."""

OTHERS = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LC_ALL VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONPATH PYTHONHOME "
    "PYTHONNOUSERSITE PYTHONSTARTUP HOSTNAME SSH_AUTH_SOCK SSH_CONNECTION SSH_TTY SUDO_USER container APPTAINER_CONTAINER "
    "SINGULARITY_CONTAINER KUBERNETES_SERVICE_HOST WSL_DISTRO_NAME NO_COLOR TERM COLUMNS TMPDIR XDG_RUNTIME_DIR "
    "http_proxy https_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY GRPC_PROXY grpc_proxy "
    "MPI_HOME NODE_RANK MODULEPATH LOADEDMODULES PBS_JOBID LSB_JOBID JOB_ID CI".split()
)
"""Single names that collectors need."""

SECRET = re.compile(
    r"(KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|SIGNATURE|_PAT$|AUTH(?!_SOCK))", re.IGNORECASE
)
_USERINFO = re.compile(r"(?<=://)[^/@\s]*@|^[^/@\s:]+:[^/@\s]+@")


def variable(name: str, value: str) -> str:
    """Return ``value`` as it may be kept: without log-ins in addresses, hidden where the name sounds secret."""
    if SECRET.search(name):
        return HIDDEN
    return _USERINFO.sub(HIDDEN + "@", value)


def environment(variables: Dict[str, str]) -> Dict[str, str]:
    """Keep the variables on the allow-list, each as ``variable`` lets it through."""
    return {
        name: variable(name, value)
        for name, value in sorted(variables.items())
        if FAMILIES.match(name) or name in OTHERS
    }
