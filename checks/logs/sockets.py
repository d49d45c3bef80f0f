"""Sockets and interfaces."""

from ddp_doctor.checks.logs._cause import PROGRESS, cause

NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
NCCL_NET = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html"
DIST = "https://docs.pytorch.org/docs/stable/distributed.html"

socket_no_interface = cause(
    __name__,
    f"""NCCL finds no interface that it can use.

    Why: Without NCCL_SOCKET_IFNAME it leaves out loopback and docker; where nothing else has an address (a container without
        a network), its start-up fails.
    See: {NCCL_ENV}
    """,
    r"Bootstrap : no socket interface found",
    r"[Nn]o (usable |socket )?interface found",
    r"NET/Socket : no interface",
    r"WARN Socket creation failed ?:? Address family not supported",
    do="Give the container the host's network (--network host) or an interface with an address; ddp-doctor run shows what NCCL will choose.",
    unless=(r"NCCL_SOCKET_IFNAME set",),
)

socket_ifname_wrong = cause(
    __name__,
    f"""NCCL_SOCKET_IFNAME names an interface that is not there.

    Why: The name holds on one node and not on another, or was copied; it is a prefix unless it begins with "=".
    See: {NCCL_ENV}
    """,
    r"connecting to address\s{1,4}with family \d{1,6} is neither AF_INET",
    r"Bootstrap : no socket interface found",
    r"no (socket )?interface found.{0,80}NCCL_SOCKET_IFNAME",
    r"with family \d{1,6} is neither AF_INET\(2\) nor AF_INET6\(10\)",
    needs=(r"NCCL_SOCKET_IFNAME (set|=)|NCCL_SOCKET_IFNAME",),
    do="Unset NCCL_SOCKET_IFNAME, or set a list of names that fit all nodes (=enp3s0,eno1): ddp-doctor run --nodes shows them.",
)

socket_loopback = cause(
    __name__,
    f"""Ranks of different nodes call each other at a loopback address.

    Why: The host's own name leads to 127.0.0.1 or 127.0.1.1, or loopback was chosen as the interface: others cannot connect.
    See: {NCCL_NET}
    """,
    r"(Connect|connect)[a-z]{0,4} to (127\.\d{1,3}\.\d{1,3}\.\d{1,3}|::1)<\d{1,6}> failed",
    r"Bootstrap : Using \[?0?\]?lo:127\.",
    r"NET/Socket : Using \[0\]lo:",
    do="Set NCCL_SOCKET_IFNAME to the interface between the nodes, and let the own name lead to its address in /etc/hosts.",
)

gloo_loopback = cause(
    __name__,
    f"""Gloo connects to a loopback address.

    Why: Gloo binds to the address of the host's own name; where that is 127.0.0.1, other nodes are told to call themselves.
    See: {DIST}
    """,
    r"connectFullMesh failed",
    r"[Gg]loo.{0,200}remote=\[127\.",
    r"pair\.cc:\d{1,5}\] connect \[(::ffff:)?127\.",
    r"Using the loopback address as fallback",
    needs=(
        r"remote=\[(::ffff:)?127\.|connect \[(::ffff:)?127\.|Using the loopback address as fallback",
        r"connectFullMesh failed|Connection refused|timed out",
    ),
    do="Set GLOO_SOCKET_IFNAME to the interface between the nodes, or mend the own name in /etc/hosts.",
)

gloo_ip_family_mismatch = cause(
    __name__,
    f"""One end of Gloo speaks IPv6, the other IPv4.

    Why: Host names resolve to another family on some nodes.
    See: {DIST}
    """,
    r"ss1\.ss_family == ss2\.ss_family",
    r"\.ss_family (==|!=) .{0,40}ss_family",
    r"gloo.{0,200}address family (mismatch|not supported)",
    do="Set GLOO_SOCKET_IFNAME on all nodes to interfaces with addresses of one family, or resolve the names alike.",
)

gloo_ifname_wrong = cause(
    __name__,
    f"""GLOO_SOCKET_IFNAME names an interface that is not there.

    Why: Gloo takes exact names only, without patterns, and fails where one is missing.
    See: {DIST}
    """,
    r"[Uu]nable to find address for: \S{1,64}",
    r"GLOO_SOCKET_IFNAME.{0,80}(not found|invalid|does not exist)",
    r"gloo.{0,160}(Unable to find interface|couldn't find interface)",
    r"makeDeviceForInterface.{0,120}(error|fail)",
    do="Set GLOO_SOCKET_IFNAME to this node's interface (ip -br address), or unset it.",
)

socket_virtual_nic = cause(
    __name__,
    f"""NCCL uses a bridge, a tunnel or a link-local address that leads to no other node.

    Why: It takes what has an address; bridges of containers and virtual machines look like any interface.
    See: {NCCL_ENV}
    """,
    r"\](br-[0-9a-f]{6,14}|virbr\d{1,3}|docker\d{1,3}|veth\w{1,16}|cni\d|flannel\.\d|cali\w{1,16}|tun\d{1,3}|ip6tnl\d|wg\d|tailscale\d|podman\d|vmnet\d{1,3}):",
    r"(Bootstrap : Using|NET/Socket : Using) (\[\d{1,2}\])?(br-[0-9a-f]{6,14}|virbr\d{1,3}|docker\d{1,3}|veth\w{1,16}|cni\d|flannel\.\d|tun\d{1,3}|ip6tnl\d|wg\d|tailscale\d|podman\d|vmnet\d{1,3}):",
    needs=(r"NCCL WARN|[Ee]rror|ailed|timed? ?out|unhandled|NCCL INFO \S{1,60}:\d{1,6} -> [1-9]",),
    unless=(r"Duplicate GPU", r"Avg bus bandwidth"),
    confidence="medium",
    do="Set NCCL_SOCKET_IFNAME to the interface between the nodes, or leave the virtual ones out: NCCL_SOCKET_IFNAME=^br-,docker,virbr,veth,tun.",
)

service_mesh_sidecar = cause(
    __name__,
    """A service mesh's proxy takes NCCL's connections.

    Why: The sidecar accepts and forwards only what it knows; NCCL's protocol gets stuck before Init COMPLETE, without an error.
    See: https://istio.io/latest/docs/ops/configuration/traffic-management/protocol-selection/
    """,
    r"[Ii]stio|[Ee]nvoy|linkerd|sidecar",
    r"mpi-?operator|nccl-tests-worker-\d{1,4}:\d{1,8}:\d{1,8} \[\d\] NCCL INFO Bootstrap",
    needs=(r"NCCL INFO Bootstrap",),
    unless=(*PROGRESS, r"Init COMPLETE", r"NCCL WARN", r"Avg bus bandwidth"),
    confidence="low",
    do='Turn injection off for the training pods (sidecar.istio.io/inject: "false"), or exclude their ports.',
)

firewall_blocked_port = cause(
    __name__,
    f"""A firewall or a route keeps nodes apart.

    Why: NCCL and Gloo use random ports besides MASTER_PORT; where those are closed the first meeting works and then ranks hang.
    See: {NCCL_NET}
    """,
    r"No route to host",
    r"errno: 113\b",
    r"Connect(ion)? to \S{1,80} failed ?: ?(No route to host|Connection timed out)",
    r"socketStartConnect: Connect to .{1,80} failed ?: ?(No route|Connection timed|Connection refused)",
    r"errno: 110 - Connection timed out",
    r"connect\(\) (failed|returned) .{0,40}(No route to host|timed out)",
    r"_exit_barrier",
    unless=(
        r"Connect to 127\.",
        r"any network address of \(\d{1,10}, \d{1,5}\)",
        r"failed to connect to \[?[A-Za-z][\w.-]{0,200}\]?:\d{1,5} \(errno: 113",
        r"failed to connect to \[?(::ffff:)?0\.0\.",
    ),
    tier=2,
    confidence="medium",
    do="Let the nodes' subnet through with all ports on every node; ddp-doctor run --nodes tries the ports in both directions and names the firewall.",
)

open_files_limit = cause(
    __name__,
    f"""The limit of open files is used up.

    Why: Each connection is a file, and a rank of a large job has many of them, besides its data loader.
    See: {NCCL_NET}
    """,
    r"Too many open files",
    r"\bEMFILE\b",
    r"errno: 24\b",
    do="Raise nofile: ulimit -n 1048576, LimitNOFILE= of slurmd or containerd, --ulimit nofile=1048576 for a container.",
)

proxy_intercepts = cause(
    __name__,
    f"""A proxy stands between the ranks.

    Why: Clients of gRPC and HTTP obey http_proxy; rendezvous through etcd or an object store then goes to the proxy.
    See: {DIST}
    """,
    r"ProxyError|407 Proxy Authentication|Tunnel connection failed",
    r"https?_proxy.{0,200}(failed|refused|timed out)",
    r"failed to connect.{0,80}(through|via|to) (the )?proxy",
    confidence="medium",
    tier=2,
    do="Unset http_proxy and https_proxy for the job, or set no_proxy to the nodes' names and addresses.",
)

slow_fallback_socket = cause(
    __name__,
    f"""NCCL uses sockets although RDMA was meant to be used.

    Why: It found no device that it could open, or the plug-in did not load, and says so in one line only; the job runs, at a
        fraction of the speed.
    See: {NCCL_NET}
    """,
    r"NCCL INFO Using network Socket",
    needs=(
        r"NCCL_IB_(HCA|GID_INDEX|TC|SL|TIMEOUT|QPS_PER_CONNECTION|PCI_RELAXED\w{0,12}) (set|=)|NCCL_IB_DISABLE set by environment to 0|NCCL_NET set by environment to IB|InfiniBand|RoCE",
    ),
    unless=(
        r"NCCL WARN",
        r"NCCL_IB_DISABLE set by environment to 1",
        r"unhandled",
        r"nNodes 1\b",
        r"via (P2P|SHM|direct shared)",
        r"NET/IB : Using",
    ),
    tier=2,
    confidence="medium",
    do="See why there is no NET/IB line above it: ddp-doctor run shows the RDMA ports, their devices in the container, and libibverbs.",
)

connection_reset_by_peer_exit = cause(
    __name__,
    f"""A peer has gone: its connections are closed.

    Why: The rank at the other end ended, was killed or crashed first; what this one prints is the consequence.
    See: {DIST}
    """,
    r"Connection (reset|closed) by (remote )?peer",
    r"Connection reset by peer",
    r"Broken pipe",
    r"ncclRemoteError",
    r"remote process exited or there was a network error",
    r"recvValue failed|sendBytes failed|recvBytes failed",
    r"Socket recv failed while polling",
    unless=(r"final_loss|Training (finished|complete|runs)|[Aa]ccuracy reached|status\": ?\"success",),
    tier=4,
    confidence="low",
    do="Look at the rank that went first: its own log, dmesg on its node (OOM killer, Xid), the scheduler's words.",
)
