"""Environments of healthy nodes, as images, schedulers, launchers and clouds set them: nothing to say."""

import pytest
from ddp_doctor import engine
from ddp_doctor.config import Config
from ddp_doctor.facts import Env, NodeFacts, Torch, Variable
from ddp_doctor.policy import Policy
from judging import own_checks

CHECKS = [check for id, check in own_checks().checks.items() if id.startswith("env/")]


def variables(text):
    """NAME=value words as a dictionary."""
    return dict(word.split("=", 1) for word in text.split())


NGC = variables(
    """
    NCCL_VERSION=2.21.5 CUDA_VERSION=12.4.1.003 CUDA_DRIVER_VERSION=550.54.15 NVIDIA_VISIBLE_DEVICES=all
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video NVIDIA_REQUIRE_CUDA=cuda>=9.0 NVIDIA_PYTORCH_VERSION=24.04
    CUDNN_VERSION=9.1.0.70 CUBLAS_VERSION=12.4.5.8 CUDA_MODULE_LOADING=LAZY TORCH_CUDNN_V8_API_ENABLED=1
    PYTORCH_BUILD_VERSION=2.3.0a0+6ddf5cf85e PYTORCH_HOME=/opt/pytorch/pytorch
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 CUDA_HOME=/usr/local/cuda NVIDIA_BUILD_ID=88113656
    OMPI_MCA_coll_hcoll_enable=0 UCC_CL_BASIC_TLS=^sharp OPAL_PREFIX=/opt/hpcx/ompi
    LD_LIBRARY_PATH=/usr/local/nvidia/lib
    """
)
CUDA_IMAGE = variables(
    """
    NCCL_VERSION=2.19.3-1 CUDA_VERSION=12.3.1 NVIDIA_VISIBLE_DEVICES=all
    NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_PRODUCT_NAME=CUDA NV_LIBNCCL_PACKAGE_VERSION=2.19.3-1
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64
    """
)
TORCHRUN = variables(
    """
    RANK=3 LOCAL_RANK=3 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 GROUP_WORLD_SIZE=2 ROLE_RANK=3
    ROLE_WORLD_SIZE=8 ROLE_NAME=default MASTER_ADDR=node1 MASTER_PORT=29500 TORCHELASTIC_RESTART_COUNT=0
    TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True OMP_NUM_THREADS=1
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TORCHELASTIC_ERROR_FILE=/tmp/torchelastic_x/error.json
    """
)
OLD_TORCHRUN = {name: value for name, value in TORCHRUN.items() if not name.startswith("TORCH_NCCL")}
OLD_TORCHRUN["NCCL_ASYNC_ERROR_HANDLING"] = "1"
SLURM = variables(
    """
    SLURM_JOB_ID=123456 SLURM_NNODES=2 SLURM_NTASKS=16 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0
    SLURM_JOB_NODELIST=node[01-02] SLURM_GPUS_ON_NODE=8 SLURM_STEP_GPUS=0,1,2,3,4,5,6,7 SLURM_CPUS_PER_TASK=8
    SLURM_CPU_BIND=quiet,mask_cpu:0x00FF SLURM_STEP_NUM_NODES=2 SLURM_MEM_PER_NODE=1024 SLURM_JWT=<redacted>
    CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 GPU_DEVICE_ORDINAL=0,1,2,3,4,5,6,7 PMIX_RANK=0 OMP_NUM_THREADS=8
    """
)
KUBEFLOW = variables(
    """
    MASTER_ADDR=bert-master-0 MASTER_PORT=23456 WORLD_SIZE=2 RANK=1 PET_NNODES=2 PET_NODE_RANK=1
    PET_NPROC_PER_NODE=8 PET_MASTER_ADDR=bert-master-0 PET_MASTER_PORT=23456 NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2
    """
)
AWS = variables(
    """
    FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_EFA_FORK_SAFE=1 RDMAV_FORK_SAFE=1
    NCCL_SOCKET_IFNAME=^docker,lo,veth LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/aws-ofi-nccl/lib
    NCCL_TUNER_PLUGIN=/opt/amazon/ofi-nccl/lib/libnccl-ofi-tuner.so NCCL_DEBUG=WARN
    """
)
AZURE = variables(
    """
    NCCL_IB_PCI_RELAXED_ORDERING=1 NCCL_SOCKET_IFNAME=eth0 NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml
    CUDA_DEVICE_ORDER=PCI_BUS_ID UCX_TLS=rc UCX_NET_DEVICES=mlx5_ib0:1 NCCL_DEBUG=WARN NCCL_MIN_CTAS=32
    OMPI_MCA_coll_hcoll_enable=0
    """
)
GOOGLE = variables(
    """
    NCCL_FASTRAK_CTRL_DEV=eth0 NCCL_FASTRAK_IFNAME=eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8
    NCCL_SOCKET_IFNAME=eth0 NCCL_CROSS_NIC=0 NCCL_ALGO=Ring,Tree NCCL_PROTO=Simple,LL128 NCCL_MIN_NCHANNELS=4
    NCCL_BUFFSIZE=8388608 NCCL_TUNER_PLUGIN=libnccl-tuner.so
    NCCL_TUNER_CONFIG_PATH=/usr/local/nvidia/lib64/a3plus_tuner_config.textproto
    NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE=/usr/local/nvidia/lib64/a3plus_guest_config.textproto
    NCCL_DYNAMIC_CHUNK_SIZE=524288 NCCL_P2P_NET_CHUNKSIZE=524288 NCCL_P2P_PCI_CHUNKSIZE=524288
    NCCL_P2P_NVL_CHUNKSIZE=1048576 NCCL_FASTRAK_NUM_FLOWS=2 NCCL_FASTRAK_USE_SNAP=1 NCCL_NVLS_ENABLE=0
    NCCL_FASTRAK_PLUGIN_ACCEPT_TIMEOUT_MS=600000 NCCL_FASTRAK_ENABLE_CONTROL_CHANNEL=0 NCCL_NET=FasTrak
    CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 NCCL_NET_GDR_LEVEL=PIX NCCL_FASTRAK_USE_LLCM=1 NCCL_LIB_DIR=/usr/lib
    NCCL_NET_PLUGIN_TELEMETRY_MODE=1 NCCL_GPUVIZ_READ_INTERVAL_IN_MICROSECONDS=1000000 NCCL_DEBUG=WARN
    NCCL_DEBUG_SUBSYS=INIT,NET,ENV,COLL,GRAPH NCCL_P2P_PXN_LEVEL=0
    """
)
ORACLE = variables(
    """
    NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_GID_INDEX=3 NCCL_IB_TC=41 NCCL_IB_SL=0 NCCL_IB_TIMEOUT=22
    NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8 NCCL_SOCKET_IFNAME=eth0
    NCCL_NET_PLUGIN=none NCCL_IB_SPLIT_DATA_ON_QPS=0 NCCL_CUMEM_ENABLE=0 NCCL_BUFFSIZE=16777216
    UCX_NET_DEVICES=eth0 UCX_TLS=tcp
    """
)
INFINIBAND = variables(
    """
    NCCL_IB_HCA=mlx5_0,mlx5_3,mlx5_4 NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0 NCCL_IB_DISABLE=0
    NCCL_COLLNET_ENABLE=0 NCCL_NET_GDR_LEVEL=PHB NCCL_IB_TIMEOUT=23 NCCL_IB_RETRY_CNT=7 NCCL_CROSS_NIC=1
    UCX_IB_PCI_RELAXED_ORDERING=on SHARP_COLL_ENABLE_SAT=1 FI_LOG_LEVEL=warn MELLANOX_VISIBLE_DEVICES=all
    """
)

NEW, OLD = (
    Torch(version="2.7.1+cu126", nccl="2.26.2", cuda="12.6"),
    Torch(version="1.12.1+cu113", nccl="2.10.3", cuda="11.3"),
)

HEALTHY = {
    "ngc": (NGC, NEW),
    "ngc, torch not read": (NGC, None),
    "cuda image": (CUDA_IMAGE, NEW),
    "cuda image, old torch": (CUDA_IMAGE, OLD),
    "torchrun": (TORCHRUN, NEW),
    "torchrun 1.12": (OLD_TORCHRUN, OLD),
    "slurm": (SLURM, NEW),
    "slurm and torchrun": ({**SLURM, **TORCHRUN}, NEW),
    "kubeflow": (KUBEFLOW, NEW),
    "aws": (AWS, NEW),
    "azure": (AZURE, NEW),
    "google": (GOOGLE, NEW),
    "oracle": (ORACLE, NEW),
    "infiniband": (INFINIBAND, NEW),
    "nothing": ({}, None),
}


def failures(settings, torch, nnodes=2):
    env = Env(tuple(Variable(name, value) for name, value in sorted(settings.items())), nccl_conf_files=())
    verdicts = engine.judge(NodeFacts("n", env=env, torch=torch), CHECKS, Config(policy=Policy(nnodes=nnodes)))
    assert [v for v in verdicts if v.outcome.value == "broken"] == []
    return [(v.check, v.measured) for v in verdicts if v.outcome.value == "failed"]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_environment_gives_no_finding(name):
    assert failures(*HEALTHY[name]) == []


def test_with_the_environment_alone_every_check_can_be_asked():
    """As ddp-doctor lint does it: what needs the node is skipped, nothing breaks, and what is wrong is found."""
    found = failures({"NCCL_SOCKET_TIMEOUT": "1", "NCCL_IB_DISABLE": "true", "GLOO_SOCKET_IFNAME": "^lo"}, None)
    assert [check for check, _ in found] == [
        "env/gloo-list-has-pattern",
        "env/name-nobody-reads",
        "env/value-not-a-number",
    ]


def test_hostile_names_and_values_break_nothing():
    odd = ["", "\x00", "\r", "é", "a" * 5000, "-", "^", "=", ",", "0x", "9" * 500, "$(id)", "<redacted>", "1;rm -rf /"]
    names = ["NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_ALGO", "CUDA_VISIBLE_DEVICES",
             "GLOO_SOCKET_IFNAME", "NCCL_" + "A" * 1000, "OMP_NUM_THREADS", "PET_NNODES", "NCCL_IB_ADDR_RANGE", ""]  # fmt: skip
    for value in odd:
        assert isinstance(failures(dict.fromkeys(names, value), NEW), list)
