"""Over the whole matrix: what pip really installs together is never called broken, and what is not together is."""

import re

from ddp_doctor import compat, engine, tables
from ddp_doctor.config import Config
from ddp_doctor.facts import Cuda, Gpu, Gpus, LoadedLibrary, NodeFacts, Os, PciGpu, Reason, Torch
from ddp_doctor.model import Outcome, Severity
from ddp_doctor.versions import at_least, release
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from judging import outcome, own_checks

STACK = [check for id, check in sorted(own_checks().checks.items()) if id.startswith("stack/")]
OF_NCCL_ITSELF = {"stack/nccl-has-known-bug"}
"""That a release has a bug is no matter of what goes together."""
DRIVERS = sorted(
    {
        *(row.driver for row in (*tables.cuda_majors(), *tables.cuda_toolkits()) if row.driver),
        *(row.newest for row in tables.drivers() if row.newest),
    },
    key=release,
)


def cuda_of(driver):
    """The highest CUDA version that a driver supports, as the tables of branches and toolkits tell."""
    branch = compat.driver_branch(driver)
    found = {row.cuda for row in tables.cuda_toolkits() if row.driver and at_least(driver, row.driver)}
    return max({*found, *re.findall(r"^\d+\.\d+$", branch.cuda if branch else "")}, key=release)


def drives(driver, gpu):
    """Does the driver know the GPU: not made before it came, and not after it was dropped?"""
    dropped = {
        row.last_driver_branch for row in tables.architectures() if row.compute_capability == gpu.compute_capability
    }
    last = max((release(branch) for branch in dropped if release(branch)), default=(9999,))
    return release(driver)[:1] <= last and at_least(cuda_of(driver), gpu.first_cuda)


def torch_of(build, python, machine, imported, local, version_of):
    """The torch section of an environment into which pip installed this build."""
    major = release(build.cuda)[0]
    wheels = build.nccl_linkage.startswith("wheel")
    packages = {f"nvidia-nccl-cu{major}": build.nccl, f"nvidia-cudnn-cu{major}": build.cudnn} if wheels else {}
    packages = {name: version for name, version in packages.items() if version}
    nccl = "/env/lib/nvidia/nccl/lib/libnccl.so.2" if wheels else ""
    arm = machine == "aarch64"
    glibc = (build.glibc_aarch64 if arm else build.glibc_x86_64).replace(".", "_")
    codes = build.architectures_aarch64 if arm else build.architectures
    listed = [f"sm_{code.replace('.', '')}" for code in codes]
    ptx = [f"compute_{number.replace('.', '')}" for number in re.findall(r"^\d+\.\d+", build.ptx)]
    static = Reason("not-applicable", "linked statically")
    return Torch(
        python="/env/bin/python",
        python_version=f"{python}.4",
        installed=True,
        version=f"{build.torch}+{build.build}" if local else build.torch,
        cuda=build.cuda,
        hip="",
        installer="pip",
        flavour="official-wheel",
        wheel_tag=f"manylinux_{glibc}_{machine}",
        requires=tuple(f'{name}=={version}; platform_system == "Linux"' for name, version in packages.items()),
        nvidia_packages=packages,
        companions=version_of,
        imported=True if imported else None,
        arch_list=(*listed, *ptx) if imported else None,
        nccl=build.nccl or None if imported else None,
        nccl_loaded=LoadedLibrary(nccl, build.nccl) if imported and wheels and build.nccl else None,
        nccl_bundled=nccl,
        distributed=True if imported else None,
        backends=("gloo", "nccl") if imported else None,
        cuda_available=True if imported else None,
        cuda_device_count=1 if imported else None,
        unread={
            **({} if imported else {"imported": Reason("not-asked", "profile quick")}),
            **({} if imported and wheels and build.nccl else {"nccl_loaded": static}),
        },
    )


def gpus_of(driver, gpu):
    return Gpus(
        source="nvml",
        driver=driver,
        kernel_module=driver,
        kernel_module_open=release(gpu.compute_capability) >= (7, 5),
        library=driver,
        cuda=cuda_of(driver),
        gpus=(Gpu(0, name=f"NVIDIA {gpu.name}", compute_capability=gpu.compute_capability, pci="0000:07:00.0"),),
        on_bus=(PciGpu("0000:07:00.0", "0x20b2", "nvidia"),),
        other_vendor=(),
    )


@st.composite
def installed_together(draw):
    """A node on which pip installed a build that its Python, driver, GPU and C library can run."""
    build = draw(st.sampled_from(tables.torch()))
    arm = build.cuda_aarch64 == build.cuda and bool(build.architectures_aarch64)
    machine = draw(st.sampled_from(["x86_64", "aarch64"] if arm else ["x86_64"]))
    python = draw(st.sampled_from([python for python in build.pythons if not python.endswith("t")]))
    driver = draw(st.sampled_from([driver for driver in DRIVERS if compat.driver_runs(driver, build.cuda)]))
    runs = [
        g for g in tables.gpus() if drives(driver, g) and compat.runs_on(build, g.compute_capability, driver, machine)
    ]
    assume(runs)
    systems = [row for row in tables.distributions() if compat.glibc_fits(build, row.glibc, machine)]
    system = draw(st.sampled_from(systems))
    version_of = {}
    for package in ("torchvision", "torchaudio"):
        known = compat.companions(package, build.torch)
        if known and draw(st.booleans()):
            version_of[package] = draw(st.sampled_from(known)).version
    return NodeFacts(
        "node1",
        os=Os(id=system.id, version=system.version, kernel="5.15.0", machine=machine, glibc=system.glibc, container=""),
        gpus=gpus_of(driver, draw(st.sampled_from(runs))),
        torch=torch_of(build, python, machine, draw(st.booleans()), draw(st.booleans()), version_of),
        cuda=Cuda(toolkits=(), library_path=(), shadowing=(), nccls=()),
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(installed_together())
def test_what_pip_installs_together_is_never_called_broken(node):
    verdicts = engine.judge(node, STACK, Config())
    assert [verdict for verdict in verdicts if verdict.outcome is Outcome.BROKEN] == []
    assert [
        (verdict.check, verdict.message)
        for verdict in verdicts
        if verdict.outcome is Outcome.FAILED
        and verdict.severity in (Severity.ERROR, Severity.WARNING)
        and verdict.check not in OF_NCCL_ITSELF
    ] == []


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(tables.torch()), st.sampled_from(DRIVERS), st.sampled_from(tables.gpus()))
def test_a_driver_below_the_floor_is_called_too_old(build, driver, gpu):
    assume(not compat.driver_runs(driver, build.cuda))
    torch = torch_of(build, build.pythons[0], "x86_64", False, True, {})
    # Only the newest driver of a CUDA major supports all of it: the table of branches rounds up
    assume(not at_least(cuda_of(driver), build.cuda))
    assert outcome("stack/driver-too-old", torch=torch, gpus=gpus_of(driver, gpu)) == "failed"


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(tables.torch()), st.sampled_from(tables.gpus()), st.booleans())
def test_a_gpu_without_code_is_told(build, gpu, imported):
    assume(not compat.has_code_for(build, gpu.compute_capability))
    torch = torch_of(build, build.pythons[0], "x86_64", imported, True, {})
    facts = {
        "os": Os(id="ubuntu", machine="x86_64", kernel="5.15.0"),
        "torch": torch,
        "gpus": gpus_of(DRIVERS[-1], gpu),
    }
    assert outcome("stack/no-code-for-gpu", **facts) == "failed"
