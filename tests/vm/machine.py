"""A virtual machine with a real RDMA stack: Debian's kernel under software emulation on this machine's own root.

The kernel package is unpacked into a folder of its own; nothing is installed. The machine sees the root read-only
below a layer in memory, has two network cards on a wire between them alone, and writes what its scenarios (the file ``guest``) printed to a folder.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".tests-env" / "vm"
PROGRAMS = "qemu-system-x86_64 busybox depmod modprobe dpkg-deb apt-get ibv_devinfo ib_write_bw rdma ip setpriv".split()
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
LIMIT_S = 600
"""Boot and all scenarios took 210 s on two emulated cores, on a machine that was busy with other things."""


class Unable(Exception):
    """There can be no virtual machine here; the text says why."""


def possible() -> None:
    """Raises Unable."""
    if os.geteuid() != 0:
        raise Unable("needs root")
    if os.uname().machine != "x86_64":
        raise Unable(f"the emulated machine is x86_64, this one {os.uname().machine}")
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        raise Unable(f"not installed: {', '.join(missing)}")


def kernel() -> Path:
    """The folder with boot/vmlinuz-* and lib/modules/*; fetched and unpacked once. Raises Unable."""
    if not CACHE.is_dir():
        CACHE.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
            _unpack(Path(folder), _package())
            os.rename(folder, CACHE)
            os.mkdir(folder)  # for its removal
    return CACHE


def _package() -> str:
    """linux-image-6.1.0-57-amd64: what the meta package of this Debian depends on."""
    text = _run(["apt-cache", "depends", "linux-image-amd64"])
    names = [line.split()[-1] for line in text.splitlines() if "Depends: linux-image-" in line]
    if not names:
        raise Unable("apt knows no linux-image-amd64")
    return names[0]


def _unpack(folder: Path, package: str) -> None:
    _run(["apt-get", "download", "-qq", package], cwd=folder)
    archive = next(folder.glob("*.deb"))
    _run(["dpkg-deb", "-x", archive.name, "."], cwd=folder)
    archive.unlink()
    _run(["depmod", "-b", str(folder), package.replace("linux-image-", "")])


def _run(argv: List[str], **more: object) -> str:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=180, text=True, **more)  # type: ignore[call-overload]
    if done.returncode:
        raise Unable(f"{argv[0]}: {done.stderr.strip()[-200:]}")
    return str(done.stdout)


def _initramfs(home: Path, work: Path) -> Path:
    """busybox, the modules that the root needs, and ``init``."""
    tree = work / "initramfs"
    for folder in ("bin", "lib"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox")), tree / "bin" / "busybox")
    shutil.copy(HERE / "init", tree / "init")
    (tree / "init").chmod(0o755)
    modules = _boot_modules(home)
    for module in modules:
        shutil.copy(module, tree / "lib")
    (tree / "modules").write_text("\n".join(Path(module).name for module in modules))
    (tree / "settings").write_text(f"KERNEL_HOME='{home}'\nGUEST='{HERE / 'guest'}'\nPYTHON='{sys.executable}'\n")
    image = work / "initramfs.cpio"
    with image.open("wb") as file:
        names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
        subprocess.run(
            ["busybox", "cpio", "-o", "-H", "newc"],
            input=names.encode(),
            stdout=file,
            stderr=subprocess.DEVNULL,
            cwd=tree,
            check=True,
            timeout=60,
        )
    return image


def _boot_modules(home: Path) -> List[str]:
    """Paths of the modules, each after those that it needs."""
    version = next((home / "lib/modules").iterdir()).name
    lines = [
        _run(["modprobe", "-d", str(home), "-S", version, "-n", "--show-depends", name]).splitlines()
        for name in BOOT_MODULES
    ]
    return list(dict.fromkeys(line.split()[1] for part in lines for line in part if line.startswith("insmod")))


def boot(work: Path) -> Path:
    """Runs every scenario; the folder of what they printed. Raises Unable, or RuntimeError with the console's end."""
    possible()
    home = kernel()
    out = work / "out"
    out.mkdir()
    console = work / "console"
    with console.open("wb") as file:
        process = subprocess.Popen(
            _qemu(home, _initramfs(home, work), out), stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            process.wait()
    if not (out / "finished").exists():
        raise RuntimeError(f"the virtual machine did not finish:\n{console.read_text(errors='replace')[-4000:]}")
    return out


def _qemu(home: Path, initramfs: Path, out: Path) -> List[str]:
    """KVM is left alone: inside some virtual machines it hangs."""
    shares = [
        "-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
        "-virtfs", f"local,path={out},mount_tag=out,security_model=none",
    ]  # fmt: skip
    return [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024", "-nographic",
        "-no-reboot", *_cards(), "-kernel", str(next((home / "boot").glob("vmlinuz-*"))), "-initrd", str(initramfs),
        "-append", "console=ttyS0 quiet panic=-1 rdinit=/init", *shares,
    ]  # fmt: skip


def _cards() -> List[str]:
    """Two cards on one hub, which leads nowhere else."""
    numbers = (1, 2)
    hub = [word for n in numbers for word in ("-netdev", f"hubport,id=port{n},hubid=0")]
    return hub + [
        w for n in numbers for w in ("-device", f"virtio-net-pci,netdev=port{n},mac=02:00:00:00:00:0{n},romfile=")
    ]
