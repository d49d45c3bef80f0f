"""Every kind of cause: lines as the programs print them give it first; look-alikes do not.

The lines are written for these tests in the formats of NCCL, torch, Gloo, CUDA, the kernel, Slurm and Kubernetes.
"""

import pytest
from ddp_doctor import explain, registry
from ddp_doctor.logs import scan

CHECKS = explain.of_logs(list(registry.load(plugins=False).checks.values()))
PATTERNS = explain.patterns(CHECKS)


def explained(folder, text):
    path = folder / "log.txt"
    path.write_text(text)
    return explain.explain(scan.scanned([str(path)], PATTERNS), CHECKS)


INFO = "gpu01:100:200 [0] NCCL INFO"
WARN = "gpu01:100:200 [0] misc/socket.cc:50 NCCL WARN"
WATCH = "[E ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."

KINDS = {
    "port-in-use": [
        "RuntimeError: [Errno 98] Address already in use",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ],
    "rendezvous-numeric-hostname": ["[W socket.cpp:601] [c10d] The client socket has failed to connect to [::ffff:0.0.0.17]:41001 (errno: 110 - Connection timed out)."],
    "rendezvous-hostname-resolution": [
        "[W socket.cpp:601] [c10d] The IPv6 network addresses of (master-7, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    ],
    "rendezvous-no-host": ["torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."],
    "rendezvous-store-shared": ["WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'n1_2_0' has failed to shutdown the rendezvous 'none' due to an error of type RendezvousConnectionError.", "torch.distributed.elastic.rendezvous.api.RendezvousClosedError: The rendezvous 'none' has already been closed."],
    "rendezvous-timeout": [
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 3/4 clients joined.",
    ],
    "rendezvous-wrong-master": ["[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (10.0.0.5, 29500)."],
    "launcher-local-rank-arg": ["train.py: error: unrecognized arguments: --local-rank=1"],
    "device-ordinal-nproc": ["RuntimeError: CUDA error: invalid device ordinal"],
    "device-ordinal-global-rank": ["torch.cuda.set_device(rank)\nRuntimeError: CUDA error: invalid device ordinal"],
    "duplicate-gpu": [f"{WARN} Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000"],
    "mpi-backend-under-torchrun": ["4 c10d::ProcessGroupMPI::createProcessGroupMPI()\n[gpu01:227 :0:227] Caught signal 11 (Segmentation fault: address not mapped to object)"],
    "world-size-mismatch": ["ValueError: world_size does not match the number of ranks: expected world size of 16, but got 8"],
    "windows-no-nccl": ['  File "C:\\Users\\user\\site-packages\\torch\\distributed.py", line 5\nRuntimeError: Distributed package doesn\'t have NCCL built in'],
    "backend-missing": ["RuntimeError: Distributed package doesn't have NCCL built in", "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!"],
    "socket-no-interface": [f"{WARN} Bootstrap : no socket interface found"],
    "socket-ifname-wrong": [f"{INFO} NCCL_SOCKET_IFNAME set by environment to ib0\n{WARN} Bootstrap : no socket interface found"],
    "socket-loopback": [f"{WARN} socketStartConnect: Connect to 127.0.1.1<41235> failed : Connection refused"],
    "socket-virtual-nic": [f"{INFO} Bootstrap : Using virbr0:192.168.122.1<0>\n{WARN} socketStartConnect: Connect to 192.168.122.1<5000> failed : Connection refused"],
    "gloo-loopback": ["terminate called after throwing an instance of 'gloo::IoException'\n  what():  [pair.cc:724] connect [127.0.1.1]:3210: Connection refused", "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error, remote=[127.0.1.1]:33211"],
    "gloo-ifname-wrong": ["RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth9"],
    "gloo-ip-family-mismatch": ["RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:276] ss1.ss_family == ss2.ss_family. 2 vs 10"],
    "firewall-blocked-port": [f"{WARN} socketStartConnect: Connect to 10.0.0.7<41235> failed : No route to host", "[c10d] The client socket has failed to connect to [10.0.0.7]:29500 (errno: 113 - No route to host)."],
    "open-files-limit": [f"{WARN} Call to accept failed : Too many open files"],
    "connection-reset-by-peer-exit": ["RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:2021"],
    "ib-gid-index": ["gpu01:1:2 [0] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable"],
    "ib-memlock": ["gpu01:1:2 [0] misc/ibvwrap.cc:234 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"],
    "ib-rail-cross-nic": ["gpu01:1:2 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out"],
    "ib-device-access-container": ["gpu01:1:2 [0] NCCL WARN NET/IB : Unable to open device mlx5_0"],
    "vgpu-uvm-disabled": ["vm1:509:509 [1] init.cc:426 NCCL WARN Cuda failure 801 'operation not supported'"],
    "desync-rank0-only-collective": [WATCH.format(0, 99, "ALLREDUCE", 1)],
    "ib-acs-gdr": ["gpu01:1:2 [0] ib_plugin.c:1105 NCCL WARN NET/IB : Got completion from peer 10.0.35.1<49189> with error 4, opcode 5327, len 5327, vendor err 81 (Send)", "gpu01:1:2 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=4 opcode=129 len=0 vendor err 81"],
    "ib-port-error-event": ["gpu01:1:2 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error"],
    "ib-retry-exceeded": ["step 400\ngpu01:1:2 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=0 len=0 vendor err 129"],
    "ib-mtu-mismatch": ["gpu01:1:2 [0] transport/net_ib.cc:100 NCCL WARN NET/IB : mlx5_0:1 Got async event : local access violation work queue error"],
    "efa-plugin": ["gpu01:1:2 [0] get_ofi_provider:312 NCCL WARN NET/OFI Could not find any optimal provider"],
    "efa-peer-gone-host-oom": ["gpu01:1:2 [0] NCCL WARN NET/OFI Request 0x1 completed with error. RC: 5. Error: Invalid receiver queue pair number (QPN)"],
    "net-plugin-lib-conflict": [f"{INFO} NET/Plugin: libnccl-net.so: /usr/lib/libfabric.so.1: version `FABRIC_1.8' not found (required by libnccl-net.so)"],
    "ofi-gdr-level-hang": [f"{INFO} NCCL_NET_GDR_LEVEL set by environment to PHB\n{INFO} NET/OFI Selected Provider is cxi\n{WATCH.format(0, 1, 'ALLGATHER', 4)}\n{WATCH.format(1, 1, 'ALLGATHER', 4)}"],
    "cuda-driver-too-old": ["RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'"],
    "cuda-803": ["RuntimeError: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination"],
    "cuda-804": ["Error 804: forward compatibility was attempted on non supported HW"],
    "fabric-manager-802": ["RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"],
    "no-kernel-image": ["RuntimeError: CUDA error: no kernel image is available for execution on the device"],
    "cuda-fork": ["RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"],
    "nccl-library-conflict": ["ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister"],
    "nccl-library-missing": ["ImportError: libnccl.so.2: cannot open shared object file: No such file or directory"],
    "nccl-version-mismatch": [f"{WARN} Mismatched NCCL version detected : rank 0 NCCL version 2.18.1 rank 1 NCCL version 2.19.3"],
    "cudnn-library-conflict": ["RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (8, 9, 2) but linked against (8, 5, 0)"],
    "torch-abi-mismatch": ["ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"],
    "nvls-fabric-manager": ["gpu01:1:2 [3] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'"],
    "nvls-container-caps": ["gpu01:1:2 [3] transport/nvls.cc:270 NCCL WARN Cuda failure 800 'operation not permitted'"],
    "nvls-driver-nccl-combination": ["gpu01:1:2 [3] transport/nvls.cc:270 NCCL WARN Cuda failure 801 'operation not supported'"],
    "shm-too-small": [
        "gpu01:1:2 [3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        "gpu01:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab12Cd to 33030532 bytes, error: No space left on device (28)",
    ],
    "dataloader-bus-error": ["RuntimeError: DataLoader worker (pid 417) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."],
    "dataloader-worker-killed": ["RuntimeError: DataLoader worker (pid(s) 417, 418) exited unexpectedly"],
    "host-oom-sigkill": [
        "[1234.5] Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
        "    Reason:       OOMKilled",
    ],
    "gpu-oom": ["torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
    "gpu-oom-peers-see-watchdog-timeout": [f"{WATCH.format(1, 7, 'ALLREDUCE', 10)}\n[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."],
    "gpu-oom-peers-see-socket-errors": [f"{WARN} socketProgress: Connection closed by remote peer gpu02<1>\n{WARN} Cuda failure 2 'out of memory'"],
    "desync-optype": ["\n".join(WATCH.format(rank, 10 + rank % 2, "ALLREDUCE" if rank % 2 else "BROADCAST", 5) for rank in range(4))],
    "desync-shape-mismatch": ["\n".join(WATCH.format(rank, 10, "ALLREDUCE", 100 + rank % 2) for rank in range(4))],
    "desync-nccl-check": [f"{WARN} Mismatched collective detected, please check your collective calls at and around rank 3."],
    "slow-rank-timeout": ["\n".join(WATCH.format(rank, 10, "ALLREDUCE", 100) for rank in range(3))],
    "ddp-uneven-inputs": ["RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks."],
    "ddp-unused-parameters": ["RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."],
    "ddp-model-mismatch": ["RuntimeError: DDP expects same model across all ranks, but Rank 1 has 10 params, while rank 0 has inconsistent 12 params."],
    "cpu-tensor-nccl-only-group": ["RuntimeError: No backend type associated with device type cpu", "RuntimeError: Tensors must be CUDA and dense"],
    "app-exception-one-rank": ["[rank3]: Traceback (most recent call last):\n[rank3]: KeyError: 'label'"],
    "app-exception-all-ranks": ["\n".join(f"[rank{rank}]: FileNotFoundError: [Errno 2] No such file or directory: '/data/x'" for rank in range(4))],
    "segfault-worker": ["torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -11) local_rank: 0 (pid: 7) of binary: python"],
    "rank-killed": ["torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 1 (pid: 7) of binary: python"],
    "xid-79-off-bus": ["[77.1] NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."],
    "xid-119-gsp-timeout": ["[77.1] NVRM: Xid (PCI:0000:c1:00): 119, pid=12, name=python, Timeout after 45s of waiting for RPC response from GPU0 GSP!"],
    "xid-74-nvlink": ["[77.1] NVRM: Xid (PCI:0000:c1:00): 74, pid=12, NVLink: fatal error detected on link 3"],
    "xid-48-64-94-95-memory": ["[77.1] NVRM: Xid (PCI:0000:c1:00): 95, pid=12, Uncontained ECC error detected", "[77.1] NVRM: Xid (PCI:0000:c1:00): 48, pid=12, An uncorrectable double bit error (DBE) has been detected"],
    "xid-62-micro-controller": ["[77.1] NVRM: Xid (PCI:0000:c1:00): 62, pid=12, 32e1"],
    "xid-nvlink5-145-149": ["[77.1] NVRM: Xid (PCI:0000:c1:00): 149, NETIR_LINK_EVT Fatal XC0"],
    "xid-31-mmu-fault": ["[77.1] NVRM: Xid (PCI:0000:c1:00): 31, pid=12, Ch 8, intr 0. MMU Fault: ENGINE GRAPHICS"],
    "xid-13-31-kernel-bug": ["[1.1] NVRM: Xid (PCI:0000:c1:00): 13, pid=12, Graphics Exception\n[1.2] NVRM: Xid (PCI:0000:c2:00): 31, pid=13, MMU Fault"],
    "xid-13-43-app-fault": ["[77.1] NVRM: Xid (PCI:0000:c1:00): 13, pid=12, Graphics SM Warp Exception on (GPC 0, TPC 1): Out Of Range Address"],
    "ecc-uncorrectable": ["RuntimeError: CUDA error: uncorrectable ECC error encountered"],
    "pcie-aer": ["[5.5] pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010"],
    "thermal-throttle": ["        HW Thermal Slowdown : Active"],
    "p2p-iommu-acs-hang": ["# Using devices\n#   Rank  0 Pid 15 on gpu01 device  0 [0x02] GeForce\ngpu01:15:15 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>\ngpu01:15:15 [0] NCCL INFO Channel 00 : 1[c2000] -> 0[c1000] via P2P/direct pointer"],
    "slow-fallback-socket": [f"{INFO} NCCL_IB_HCA set to mlx5_0,mlx5_1\n{INFO} NET/IB : No device found.\n{INFO} Using network Socket"],
    "proxy-intercepts": ["requests.exceptions.ProxyError: HTTPSConnectionPool: Tunnel connection failed: 403 Forbidden"],
    "gdr-disabled": ["gpu01:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\ngpu01:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/1", f"{INFO} NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"],
    "iterable-dataset-dispatch": ["ValueError: You can't use batches of different size with `dispatch_batches=True` or when using an `IterableDataset`."],
    "job-time-limit": ["slurmstepd: error: *** JOB 77 ON gpu01 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"],
    "job-cancelled": ["slurmstepd: error: *** STEP 77.0 ON gpu01 CANCELLED AT 2026-01-01T00:00:00 ***"],
    "node-failed": ["srun: error: Node failure on gpu07"],
    "disk-full": ["OSError: [Errno 28] No space left on device: '/ckpt/step_100.pt'"],
    "cuda-illegal-access": ["RuntimeError: CUDA error: an illegal memory access was encountered", "RuntimeError: CUDA error: device-side assert triggered"],
    "gpu-busy": ["RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA error: CUDA-capable device(s) is/are busy or unavailable", "RuntimeError: No CUDA GPUs are available"],
    "watchdog-stuck": ["[rank1]:[F ProcessGroupNCCL.cpp:1306] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"],
    "mig-multi-rank": ["RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at CUDAContext.cpp:50, device=1, num_gpus=1"],
}  # fmt: skip

HEALTHY = {
    "no IPv6": "[W socket.cpp:697] [c10d] The client socket cannot be initialized to connect to [gpu01]:29500 (errno: 97 - Address family not supported by protocol).",
    "no plug-in": f"{INFO} NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
    "no libibverbs": f"{INFO} Failed to open libibverbs.so[.1]",
    "threads": "W0501 torch/distributed/run.py:757] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
    "goodbye": "[rank0]:[W ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit",
    "find_unused": "[W reducer.cpp:1303] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters",
    "strides": "UserWarning: Grad strides do not match bucket view strides.",
    "deprecated": "[rank1]:[W Utils.hpp:164] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use TORCH_NCCL_ASYNC_ERROR_HANDLING instead",
    "row remap": "[77.1] NVRM: Xid (PCI:0000:c1:00): 63, pid=12, Row Remapper: New row marked for remapping",
    "corrected": "[5.5] pcieport 0000:00:02.0: AER: Corrected error received: id=0010",
    "training": "epoch 3 step 400 loss 1.25 error_rate 0.02 out of memory budget 80%",
    "collnet": "gpu01:1:2 [0] graph/tuning.cc:187 NCCL WARN CollNet is not supported or fails to initialize, ignoring NCCL_ALGO=COLLNET",
    "loopback hint": "[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback.",
    "leaving": "gpu01:1:2 [0] proxy.cc:1 NCCL WARN [Service thread] Accept failed Success\ngpu01:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu02<1>\ngpu01:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 8 - Destroy COMPLETE",
    "one node": "gpu01:1:2 [0] NCCL WARN NET/IB : Unable to open device mlx5_0\ngpu01:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8\ngpu01:1:2 [0] NCCL INFO comm 0x1 rank 0 - Init COMPLETE",
    "a paste of a start": "\n".join(
        f"gpu01:1:{n} [{n}] NCCL INFO Channel 0{n}/0 : {n}[{n}] -> {n + 1}[{n + 1}] via P2P/IPC" for n in range(4)
    )
    + "\ngpu01:1:2 [0] NCCL INFO Connected all rings\ngpu01:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 8 - Init COMPLETE",
    "no GPUDirect where there is none": "gpu01:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\ngpu01:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
    "a proxy in the environment": "http_proxy=http://proxy:3128\nerror rate 0.1, 0 failed",
    "Lightning without srun": "The `srun` command is available on your system but is not used. HINT: If your intention is to run Lightning on SLURM\nEpoch 3: 100%|####| 10/10 [00:01<00:00, 9.1it/s]",
    "preloaded, and it runs": "LD_PRELOAD=/usr/lib/libjemalloc.so\nstep 10 loss=1.25",
    "sockets on one node": "gpu01:1:2 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\ngpu01:1:2 [0] NCCL INFO NET/IB : No device found.\ngpu01:1:2 [0] NCCL INFO Using network Socket\ngpu01:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/IPC",
    "a store that closes": "epoch 3 loss 0.1\n[rank3]:[W TCPStore.cpp:106] [c10d] recvValue failed on SocketImpl(fd=5): Connection reset by peer",
    "a destructor's exception": "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\nTraceback (most recent call last):\n  File 'x.py', line 3\nAssertionError: can only test a child process\nepoch 2\nTraining finished",
    "an exception that was caught": "ConnectionError: a retry follows\nepoch 2 loss 1.0\n{'train_runtime': 100.0, 'train_loss': 1.0}",
    "finished": "NCCL INFO comm 0x1 rank 0 nranks 8 cudaDev 0 busId 1a000 - Destroy COMPLETE\nTraining finished",
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in KINDS.items() for text in texts])
def test_its_own_lines_give_it_first(tmp_path, kind, text):
    found = explained(tmp_path, f"the job starts\n{text}\n")
    assert [each.id for each in found.causes][:1] == [f"logs/{kind}"]
    assert found.verdict == "failing"
    assert found.causes[0].do
    assert found.causes[0].began is not None


@pytest.mark.parametrize("text", HEALTHY.values(), ids=HEALTHY)
def test_harmless_lines_are_no_cause(tmp_path, text):
    found = explained(tmp_path, f"epoch 1\n{text}\nepoch 2\n")
    assert (found.verdict, [each.id for each in found.causes]) == ("healthy", [])


def test_every_kind_has_lines_here():
    without = {check.id[5:] for check in CHECKS} - set(KINDS)
    assert without <= {
         "env-value-unsupported", "ib-hca-selection", "ib-libibverbs-missing", "ib-plugin-ibext",
        "ld-preload-interception", "nccl-bug-version", "p2p-disabled-by-env", "service-mesh-sidecar",
        "slurm-env",
    }  # fmt: skip
