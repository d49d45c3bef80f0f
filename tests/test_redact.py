"""Redaction: names, values and files that hold what nobody may read, and those that must stay readable."""

from typing import Dict

import pytest
from ddp_doctor import redact
from ddp_doctor.redact import HIDDEN
from hypothesis import given
from hypothesis import strategies as st

UUID = "GPU-8C1a2b3c-4d5e-6f70-8192-a3b4c5d6e7f8"


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JWT",
        "NCCL_API_KEY",
        "TORCH_HUB_TOKEN",
        "PMIX_SECURITY_COOKIE",
        "OMPI_PASSWORD",
        "TRITON_PASSPHRASE",
        "MPI_DB_PWD",
        "CUDA_Secret_1",
        "NVIDIA_NGC_PAT",
        "UCX_AUTH",
        "LD_PASS",
    ],
)
def test_names_that_hold_secrets(name: str) -> None:
    assert redact.environment({name: "hunter2"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "WANDB_API_KEY",
        "LOCAL_DB_URL",
        "ROLE_ARN",
        "MASTER_PASSWORD",
        "GROUP_X",
        "RANKS",
        "BASH_FUNC_x%%",
        "NCCL",
        "NCCL_",
        "NCCL_X\x1b[2J",
        "NCCL_A B",
        "NCCL_\u00c9",
        "XNCCL_DEBUG",
        "",
    ],
)
def test_names_on_no_list_do_not_pass(name: str) -> None:
    assert redact.environment({name: "1"}) == {}


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("https_proxy", "http://ana:pw@proxy:3128", f"http://{HIDDEN}@proxy:3128"),
        ("https_proxy", "http://ana:p@ss/w0rd@proxy:3128", f"http://{HIDDEN}@proxy:3128"),
        ("http_proxy", "ana:p@ss@proxy:3128", f"{HIDDEN}@proxy:3128"),
        ("HTTP_PROXY", "http://token@proxy", f"http://{HIDDEN}@proxy"),
        ("NCCL_X", "http://a:b@c,http://d:e@f", f"http://{HIDDEN}@c,http://{HIDDEN}@f"),
        ("OMPI_X", "--host a --password=hunter2 --np 2", f"--host a --password={HIDDEN} --np 2"),
        ("TORCH_X", "https://s/o?sig=abc%2F&x=1", f"https://s/o?sig={HIDDEN}&x=1"),
        ("SLURM_JOB_COMMENT", "wandb api_key: 0123abcd", f"wandb api_key: {HIDDEN}"),
        ("SLURM_JOB_NAME", "ghp_" + "a" * 36, HIDDEN),
        ("SLURM_JOB_NAME", "run hf_" + "Ab1" * 11 + " now", f"run {HIDDEN} now"),
        ("SLURM_X", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig", HIDDEN),
        ("SLURM_X", "AKIAIOSFODNN7EXAMPLE", HIDDEN),
        ("SLURM_X", "wJalrXUtnFEMI+K7MDENG+bPxRfiCYEXAMPLEKEY", HIDDEN),
        ("SLURM_X", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n", HIDDEN),
    ],
)
def test_values_that_hold_secrets(name: str, value: str, kept: str) -> None:
    assert redact.environment({name: value}) == {name: kept}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_PKEY", "1"),
        ("OFI_NCCL_MR_KEY_SIZE", "4"),
        ("SSH_AUTH_SOCK", "/tmp/ssh-XXabcd/agent.1"),
        ("NCCL_SOCKET_IFNAME", "=eth0,eth1"),
        ("NCCL_IB_HCA", "^=mlx5_0:1,mlx5_bond_0"),
        ("MASTER_ADDR", "fe80::1%eth0"),
        ("NCCL_COMM_ID", "10.0.0.1:29500"),
        ("NCCL_TOPO_FILE", "/opt/topo@2x.xml"),
        ("CUDA_VISIBLE_DEVICES", f"{UUID},{UUID}"),
        ("CUDA_VISIBLE_DEVICES", f"MIG-{UUID}/1/2"),
        ("NVIDIA_REQUIRE_CUDA", "cuda>=12.1 brand=tesla,driver>=470,driver<471"),
        ("LD_LIBRARY_PATH", "/nix/store/Zx9k" + "aB3" * 12 + "-cuda/lib:/usr/lib"),
        ("PATH", "/apps/NCCL/2.18.3-GCCcore-12.3.0-CUDA-12.1.1/bin"),
        ("TORCHELASTIC_RUN_ID", "d0f3a1c2-77f1-4a40-8f3b-5f1a0c9d2e11"),
        ("SLURM_CPU_BIND", "quiet,mask_cpu:0x0000000000000000FFFFFFFF00000000"),
        ("SLURM_JOB_NODELIST", "gpu[001-064,100]"),
        ("PMIX_SERVER_URI", "slurm.pmix.7.0;tcp4://127.0.0.1:41217"),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.%h.%p"),
    ],
)
def test_values_that_people_need(name: str, value: str) -> None:
    assert redact.environment({name: value}) == {name: value}


def test_a_file_keeps_its_lines_and_loses_what_is_not_for_others() -> None:
    document = (
        '# db password hunter2\nNCCL_DEBUG=INFO\r\n\nexport NCCL_SOCKET_IFNAME = "eth0"\nHF_TOKEN=abc\n'
        "hunter2\n NCCL_X=http://a:b@c\nNCCL_KEY=abc"
    )
    assert redact.lines(document) == (
        f'#\nNCCL_DEBUG=INFO\r\n\nexport NCCL_SOCKET_IFNAME = "eth0"\nHF_TOKEN={HIDDEN}\n'
        f"{HIDDEN}\n NCCL_X=http://{HIDDEN}@c\nNCCL_KEY={HIDDEN}"
    )


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=5))
def test_any_environment_passes_without_an_error(variables: Dict[str, str]) -> None:
    assert set(redact.environment(variables)) <= set(variables)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("a" * 131072, "a" * 131072),
        ("://" * 43690, "://" * 43690),
        ("token" * 26214, "token" * 26214),
        ("a:" * 65536, "a:" * 65536),
        ("aA1-" * 32768, HIDDEN),
        ("sk-" * 43690, HIDDEN),
        ("u:" + "@" * 131070, HIDDEN + "@"),
    ],
    ids=lambda value: value[:5],
)
def test_the_longest_value_that_a_kernel_allows_is_no_trap(value: str, kept: str) -> None:
    """128 KiB is MAX_ARG_STRLEN; a pattern that goes back over it again and again would take minutes here."""
    assert redact.variable("NCCL_X", value) == kept
