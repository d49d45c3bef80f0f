"""The fixture ``fake_nvml``: the real ``pynvml`` over a fake driver library, here and in processes that a test starts.

    def test_x(fake_nvml):
        fake_nvml.install(fake_nvml.healthy(8), {"3:nvmlDeviceGetHandleByIndex_v2": "!15"})
        ...  # Host().ask("nvml", ...) in this process, or subprocess.run(..., env={**os.environ, **fake_nvml.env})

What a description may say stands in ``fake_nvml.c``. ``install(..., driver=440)`` leaves out what is newer than R440.
"""

import _ctypes
import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List

import pytest

SONAME = "libnvidia-ml.so.1"
SOURCE = Path(__file__).with_name("fake_nvml.c")
ENVIRONMENT = dict(os.environ)
"""As it was before any test changed it: the compiler needs its PATH."""

Description = Dict[str, str]


class FakeNvml:
    """Builds, installs and describes the fake library."""

    buses = ("07", "0f", "47", "4e", "87", "90", "b7", "bd")
    """Bus numbers of the GPUs of ``healthy``, as on a DGX A100: GPU 0 is 0000:07:00.0."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.handles: List[int] = []
        self.env: Dict[str, str] = {}
        """Variables that make another process use the library, once it is installed."""

    def install(self, *descriptions: Description, driver: int = 580) -> None:
        """Make ``libnvidia-ml.so.1`` the fake one, saying what the descriptions say; the last one wins."""
        library = self.folder / f"r{driver}" / SONAME
        if not library.exists():
            library.parent.mkdir(exist_ok=True)
            _build(library, driver)
        said: Description = {}
        for description in descriptions:
            said.update(description)
        path = self.folder / "description"
        text = "".join(f"{name} {value}\n" for name, value in said.items())
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        self.env = {"FAKE_NVML": str(path), "LD_LIBRARY_PATH": str(library.parent)}
        self.monkeypatch.setenv("FAKE_NVML", str(path))
        self.uninstall()
        # The loader finds a loaded library by its soname: children that ask for it get this one.
        self.handles.append(ctypes.CDLL(str(library))._handle)

    def uninstall(self) -> None:
        while self.handles:
            _ctypes.dlclose(self.handles.pop())

    @classmethod
    def healthy(cls, count: int = 8, version: str = "535.104.05") -> Description:
        """An idle A100 node: driver, CUDA 12.2 and ``count`` GPUs, at most eight."""
        said = {**_NODE, "nvmlDeviceGetCount_v2": str(count)}
        said.update({"nvmlSystemGetDriverVersion": version, "nvmlSystemGetNVMLVersion": f"12.{version}"})
        for index in range(count):
            said[f"{index}:nvmlDeviceGetPciInfo_v3"] = f"00000000:{cls.buses[index].upper()}:00.0"
            said[f"{index}:nvmlDeviceGetUUID"] = f"GPU-00000000-0000-0000-0000-00000000000{index}"
            said[f"{index}:nvmlDeviceGetSerial"] = f"156500000000{index}"
        return said

    @staticmethod
    def hopper() -> Description:
        """What is different on a node of H100 SXM with a driver that tells the fabric's health: over ``healthy``."""
        return {**_HOPPER}


_NODE = {
    "nvmlSystemGetCudaDriverVersion": "12020",
    "nvmlDeviceGetName": "NVIDIA A100-SXM4-80GB",
    "nvmlDeviceGetMemoryInfo": f"{80 << 30} {79 << 30} {1 << 30}",
    "nvmlDeviceGetMemoryInfo_v2": f"{80 << 30} {1 << 30} {79 << 30} 0",
    "nvmlDeviceGetCudaComputeCapability": "8 0",
    "nvmlDeviceGetComputeMode": "0",
    "nvmlDeviceGetMigMode": "0 0",
    "nvmlDeviceGetPersistenceMode": "1",
    "nvmlDeviceGetTemperature": "31",
    "nvmlDeviceGetTemperatureThreshold": "92 89 95 85",
    "nvmlDeviceGetPowerUsage": "61250",
    "nvmlDeviceGetEnforcedPowerLimit": "400000",
    "nvmlDeviceGetPowerManagementDefaultLimit": "400000",
    "nvmlDeviceGetClockInfo": "210 210 1593 585",
    "nvmlDeviceGetMaxClockInfo": "1410 1410 1593 1290",
    "nvmlDeviceGetCurrentClocksEventReasons": "1",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "1",
    "nvmlDeviceGetEccMode": "1 1",
    "nvmlDeviceGetTotalEccErrors": "0 0",
    "nvmlDeviceGetRemappedRows": "0 0 0 0",
    "nvmlDeviceGetCurrPcieLinkGeneration": "4",
    "nvmlDeviceGetMaxPcieLinkGeneration": "4",
    "nvmlDeviceGetCurrPcieLinkWidth": "16",
    "nvmlDeviceGetMaxPcieLinkWidth": "16",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": "4",
    "nvmlDeviceGetPcieReplayCounter": "0",
    "nvmlDeviceGetApplicationsClock": "1410 1410 1593",
    "nvmlDeviceGetDefaultApplicationsClock": "1275 1275 1593",
    "nvmlDeviceGetPerformanceState": "0",
    "nvmlDeviceGetUtilizationRates": "0 0",
    "nvmlDeviceGetMemoryErrorCounter": "0 0",
    "nvmlDeviceGetViolationStatus": "0 0",
    "nvmlDeviceGetSramEccErrorStatus": "0",
    "nvmlDeviceGetComputeRunningProcesses_v3": "",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": "",
    "nvmlDeviceGetNvLinkState": " ".join("1" * 12),
    "nvmlDeviceGetNvLinkRemoteDeviceType": " ".join("2" * 12),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": " ".join(["00000000:C4:00.0", "00000000:C5:00.0"] * 6),
    "nvmlDeviceGetNvLinkErrorCounter": "0 0 0 0",
    "nvmlDeviceGetFieldValues": "161=0 162=0 163=0 164=25000 82=38 230=0 74=0 76=0",
    "nvmlDeviceGetP2PStatus": " ".join("0" * 8),
}
_HOPPER = {
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetCudaComputeCapability": "9 0",
    "nvmlDeviceGetNvLinkState": " ".join("1" * 18),
    "nvmlDeviceGetNvLinkRemoteDeviceType": " ".join("2" * 18),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": " ".join(["00000000:83:00.0", "00000000:84:00.0"] * 9),
    "nvmlDeviceGetFieldValues": "161=0 162=0 163=0 164=26562 82=38 230=0 74=0 76=0 269=0 270=0 271=0",
    "nvmlDeviceGetGpuFabricInfo": f"3 0 0 {0b10101010} 1 0",
}


def _build(library: Path, driver: int) -> None:
    compiler = shutil.which("cc", path=ENVIRONMENT.get("PATH"))
    if compiler is None:
        pytest.skip("no C compiler (cc) here to build the fake NVML library with")
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{SONAME}", f"-DDRIVER={driver}"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True, timeout=60, env=ENVIRONMENT)


@pytest.fixture(scope="session")
def fake_nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the libraries are built, once a session."""
    return tmp_path_factory.mktemp("fake_nvml")


@pytest.fixture
def fake_nvml(fake_nvml_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A ``FakeNvml``; nothing of it is left after the test."""
    fake = FakeNvml(fake_nvml_folder, monkeypatch)
    yield fake
    fake.uninstall()
