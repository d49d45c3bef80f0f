"""CUDA: toolkits, nvcc, what LD_LIBRARY_PATH and LD_PRELOAD put in front, and every libnccl."""

from pathlib import Path
from typing import Any, Dict

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import cuda
from ddp_doctor.facts import Cuda, Library, Toolkit
from ddp_doctor.host import Host
from ddp_doctor.recording import Recorder, Recording

JSON = '{"cuda": {"name": "CUDA SDK", "version": "11.8.20220929"}, "cuda_nvcc": {"version": "11.8.89"}}'


def read(files: Dict[str, str], env: Dict[str, str], links: Dict[str, str], **entries: Any) -> Cuda:
    """A node of files and of links given as path -> real path, whose own interpreter has no torch."""
    spoken: Dict[str, Any] = {"env ": {"value": env}, **entries}
    spoken["ask own-interpreter"] = {"value": {"path": "/o/py", "prefix": "/o", "sites": [], "version": "3.12.1"}}
    file = {"kind": "file", "mode": 0o755, "uid": 0, "gid": 0, "size_bytes": 9, "readable": True, "writable": False}
    for path, target in links.items():
        spoken[f"realpath {path}"] = {"value": target}
        spoken.setdefault(f"stat {path}", {"value": file})
    for path in (path for path in files if "/bin/" in path):
        spoken[f"stat {path}"] = {"value": file}
    host = Recording(spoken, {"root" + path: text for path, text in files.items()}, complete=True)
    return cuda.read(host, Ask(profile="quick"))


def test_nothing_is_there() -> None:
    found = read({}, {}, {})
    assert found == Cuda((), None, (), (), (), unread={"nvcc": found.unread["nvcc"]})
    assert found.unread["nvcc"].kind == "absent"


TOOLKITS = {
    "/usr/local/cuda-11.8/version.json": JSON,
    "/usr/local/cuda-11.8/bin/nvcc": "",
    "/usr/local/cuda-10.2/version.txt": "CUDA Version 10.2.89\n",
    "/usr/local/cuda-12.4/version.json": "{ truncated",
    "/usr/local/cuda-12.4/lib64/libcudart.so": "",
    "/usr/local/cuda-9.0/README": "an empty shell of an old toolkit",
    "/usr/local/cuda-samples/version.json": JSON,
    "/opt/nvidia/hpc_sdk/Linux_x86_64/23.7/cuda/12.2/version.json": JSON.replace("11.8.20220929", "12.2.1"),
    "/sw/cuda/version.json": "[]",
    "/sw/cuda/version.txt": "CUDA Version 11.0.207\n",
}


def test_toolkits_are_found_once_each() -> None:
    links = {"/usr/local/cuda": "/usr/local/cuda-11.8"}
    found = read(TOOLKITS, {"CUDA_HOME": "/sw/cuda", "CUDA_PATH": "relative"}, links)
    assert found.toolkits == (
        Toolkit("/opt/nvidia/hpc_sdk/Linux_x86_64/23.7/cuda/12.2", "12.2.1", "version.json"),
        Toolkit("/sw/cuda", "11.0.207", "version.txt"),
        Toolkit("/usr/local/cuda-10.2", "10.2.89", "version.txt"),
        Toolkit("/usr/local/cuda-11.8", "11.8.20220929", "version.json"),
        Toolkit("/usr/local/cuda-12.4", "12.4", "folder name"),
    )


@pytest.mark.parametrize(
    ("ran", "version"),
    [
        ({"status": 0, "stdout": "Cuda compilation tools, release 11.5, V11.5.119\n", "stderr": ""}, "11.5.119"),
        ({"status": -11, "stdout": "\0garbage", "stderr": ""}, None),
    ],
)
def test_nvcc_is_run_only_where_no_file_tells(ran: Any, version: Any) -> None:
    env = {"PATH": "/usr/local/cuda/bin:/usr/bin"}
    links = {"/usr/local/cuda/bin/nvcc": "/usr/local/cuda-11.8/bin/nvcc"}
    assert read(TOOLKITS, env, links).nvcc == Toolkit("/usr/local/cuda/bin/nvcc", "11.8.89", "version.json")
    found = read({"/usr/bin/nvcc": ""}, env, {}, **{"run nvcc-version": {"value": ran}})
    assert found.nvcc == Toolkit("/usr/bin/nvcc", version, "nvcc")


def test_an_nvcc_that_hangs_hides_nothing_else() -> None:
    late = {"reason": {"kind": "timed-out", "text": "nvcc-version: timed out after 5 s"}}
    found = read({**TOOLKITS, "/b/bin/nvcc": ""}, {"PATH": "/b/bin"}, {}, **{"run nvcc-version": late})
    assert (found.nvcc, found.unread["nvcc"].kind) == (None, "timed-out")
    assert found.toolkits


def test_what_stands_in_front_of_torchs_own_libraries() -> None:
    files = dict.fromkeys(
        [
            "/a/libnccl.so.2.18.3",
            "/a/libcudart.so.11.0",
            "/a/libcudnn_ops_infer.so.8",
            "/a/libnccl-net.so",
            "/usr/local/cuda/lib64/stubs/libcuda.so",
        ],
        "",
    )
    links = {"/a/libnccl.so": "/a/libnccl.so.2.18.3", "/a/libnccl.so.2": "/a/libnccl.so.2.18.3"}
    links["/p/libnccl.so.2"] = "/p/libnccl.so.2.10.3"
    env = {
        "LD_LIBRARY_PATH": "/a:/gone:/usr/local/cuda/lib64/stubs::/a;relative",
        "LD_PRELOAD": "libjemalloc.so.2 /p/libnccl.so.2:libcuda.so.1",
    }
    found = read(files, env, links)
    assert found.library_path == ("/a", "/gone", "/usr/local/cuda/lib64/stubs", "", "/a", "relative")
    assert found.shadowing == (
        Library("/p/libnccl.so.2", "nccl", "2.10.3", "ld-preload"),
        Library("libcuda.so.1", "cuda", None, "ld-preload"),
        Library("/a/libcudart.so.11.0", "cudart", "11.0", "ld-library-path"),
        Library("/a/libnccl.so.2", "nccl", "2.18.3", "ld-library-path"),
        Library("/usr/local/cuda/lib64/stubs/libcuda.so", "cuda", None, "ld-library-path"),
    )


def test_every_libnccl_and_its_version() -> None:
    site = "/v/lib/python3.10/site-packages"
    files = {
        "/v/pyvenv.cfg": "home = /usr/bin\nversion = 3.10.4\n",
        "/v/bin/python3": "",
        f"{site}/nvidia/nccl/lib/libnccl.so.2": "",
        f"{site}/nvidia_nccl_cu12-2.21.5.dist-info/METADATA": "",
        "/a/libnccl.so.2.18.3": "",
        "/odd/libnccl.so.2": "",
        "/etc/ld.so.cache": "/odd/libnccl.so.2\n/lib/gone/libnccl.so.2",
    }
    links = {"/a/libnccl.so.2": "/a/libnccl.so.2.18.3", "/usr/lib/libnccl.so.2": "/a/libnccl.so.2.18.3"}
    links["/usr/lib64/libnccl.so.2"] = "/usr/lib64/libnccl.so.2.8.4"
    scanned = {"ask nccl-version /odd/libnccl.so.2": {"value": "2.4.8"}}
    found = read(files, {"VIRTUAL_ENV": "/v", "LD_LIBRARY_PATH": "/a"}, links, **scanned)
    assert found.nccls == (
        Library("/a/libnccl.so.2.18.3", "nccl", "2.18.3", "ld-library-path"),
        Library(f"{site}/nvidia/nccl/lib/libnccl.so.2", "nccl", "2.21.5", "wheel"),
        Library("/odd/libnccl.so.2", "nccl", "2.4.8", "ld-cache"),
        Library("/usr/lib64/libnccl.so.2.8.4", "nccl", "2.8.4", "system"),
    )


def test_of_a_file_that_two_packages_write_only_the_file_tells_the_version() -> None:
    site = "/v/lib/python3.10/site-packages"
    library = f"{site}/nvidia/nccl/lib/libnccl.so.2"
    files = {
        "/v/pyvenv.cfg": "home = /usr/bin\nversion = 3.10.4\n",
        "/v/bin/python3": "",
        library: "",
        f"{site}/nvidia_nccl_cu11-2.14.3.dist-info/METADATA": "",
        f"{site}/nvidia_nccl_cu12-2.21.5.dist-info/METADATA": "",
    }
    scanned = {f"ask nccl-version {library}": {"value": "2.14.3"}}
    found = read(files, {"VIRTUAL_ENV": "/v"}, {}, **scanned)
    assert found.nccls == (Library(library, "nccl", "2.14.3", "wheel"),)


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b"\0" * 70000 + b"NCCL version 2.21.5+cuda12.4\0", "2.21.5"),
        (b"NCCL version %d.%d", None),
        (b"\x7fELF", None),
        (b"", None),
    ],
)
def test_a_library_without_a_version_in_its_name_is_searched(
    tmp_path: Path, monkeypatch: Any, content: bytes, version: Any
) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(content)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = cuda.read(Host(), Ask(profile="quick")).nccls or ()
    assert Library(str(tmp_path / "libnccl.so.2"), "nccl", version, "ld-library-path") in found


def test_of_the_loaders_cache_only_cuda_libraries_are_kept(tmp_path: Path) -> None:
    cache = b"glibc-ld.so.cache1.1\xff\0\0libnccl.so.2\0/usr/lib/libnccl.so.2\0/lib/libz.so.1\0/opt/c/libcuda.so.1\0"
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(cache)
    host = Recorder(str(tmp_path))
    cuda.read(host, Ask(profile="quick"))
    assert host.entries["read /etc/ld.so.cache"] == {"value": "/usr/lib/libnccl.so.2\n/opt/c/libcuda.so.1"}


def test_this_machine() -> None:
    found = cuda.read(Host(), Ask(profile="quick"))
    assert found.nccls is not None
    assert set(found.unread) <= {"nvcc"}
