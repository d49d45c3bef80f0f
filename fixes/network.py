"""Remedies for names, interfaces and firewalls."""

import re
import shlex
from typing import Iterator, List, Optional

from ddp_doctor import nccl
from ddp_doctor.collect.master import DEFAULT_PORT
from ddp_doctor.facts import Env, Launch, Network, Os, Torch
from ddp_doctor.fixes._net import (
    NCCL_ENV,
    NCCL_NETWORK,
    TORCHRUN,
    best_endpoint,
    good_interfaces,
    plain,
)
from ddp_doctor.fixes._node import engine_of
from ddp_doctor.model import Remedy, Step, Verdict, command, export, say, unset
from ddp_doctor.policy import Policy

DEBIAN_HOSTS = "https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution"


# --------------------------------------------------------------------------- the own host name


def own_name_unresolved(
    network: Network, env: Optional[Env] = None, os: Optional[Os] = None, torch: Optional[Torch] = None
) -> Iterator[Remedy]:
    """Give the name an address, or pass addresses explicitly."""
    yield from _own_name(network, env, os, torch)


def own_name_is_loopback(
    network: Network, env: Optional[Env] = None, os: Optional[Os] = None, torch: Optional[Torch] = None
) -> Iterator[Remedy]:
    """Give the name the address that the others reach, or pass addresses explicitly."""
    yield from _own_name(network, env, os, torch)


def own_name_is_elsewhere(
    network: Network, env: Optional[Env] = None, os: Optional[Os] = None, torch: Optional[Torch] = None
) -> Iterator[Remedy]:
    """Give the name this node's own address, or pass addresses explicitly."""
    yield from _own_name(network, env, os, torch)


def own_name_useless_to_peers(
    network: Network, env: Optional[Env] = None, os: Optional[Os] = None, torch: Optional[Torch] = None
) -> Iterator[Remedy]:
    """Pass addresses explicitly, or give the name the right address."""
    yield from reversed(list(_own_name(network, env, os, torch)))


def _own_name(network: Network, env: Optional[Env], os: Optional[Os], torch: Optional[Torch]) -> Iterator[Remedy]:
    endpoint = best_endpoint(network, env, torch)
    if endpoint is None:
        text = "Bring the interface to the other nodes up first; then the host name can have its address."
        yield Remedy("Give this node an address", (say(text, who="root"),))
        return
    ip, name = endpoint.address.ip, plain(network.hostname)
    steps = (
        export("GLOO_SOCKET_IFNAME", endpoint.interface.name, scope="this job", see=TORCHRUN),
        say(
            f"Start torchrun with --local-addr {ip} on this node, and name the master by its address. With --rdzv-backend "
            "c10d that is not enough: add --rdzv-conf is_host=1 on the master and is_host=0 on the others.",
            scope="this job",
            see=TORCHRUN,
        ),
    )
    explicit = Remedy("Pass addresses explicitly (no rights needed)", steps)
    if endpoint.interface.kind == "wireless":  # its address changes
        yield explicit
    if engine_of(os) == "":
        yield Remedy("Let the host name lead to the address that the others reach", tuple(_hosts(network, ip, name)))
    if endpoint.interface.kind != "wireless":
        yield explicit


def _hosts(network: Network, ip: str, name: str) -> Iterator[Step]:
    """Replace what /etc/hosts says of the own name; a line that serves other names too is left to a person."""
    undo = "cp -p /etc/hosts.before-ddp-doctor /etc/hosts"
    host = network.hostname or ""
    if host.split(".")[0] == "localhost":
        text = f"This machine has no name of its own: give it one (hostnamectl set-hostname NAME), and {ip} that name in /etc/hosts."
        yield say(text, who="root", scope="this node")
        return
    long = network.fqdn if plain(network.fqdn) and (network.fqdn or "").startswith(f"{host}.") else ""
    yield command("cp -p /etc/hosts /etc/hosts.before-ddp-doctor", who="root", scope="this node")
    for words in (line.split() for line in network.hosts_lines or ()):
        if words[:1] == [ip]:
            continue
        if set(words[1:]) <= {host, long, host.split(".")[0]} and all(map(plain, words)):
            yield command(_delete_line(words), who="root", scope="this node", undo=undo, see=DEBIAN_HOSTS)
        else:
            yield say(f"Take the own host name out of this line of /etc/hosts: {' '.join(words)!r}.", who="root")
    if name:
        line = shlex.quote(" ".join(filter(None, (ip, long, host))))
        risk = "an address from DHCP may change; cloud-init writes the file anew at boot where manage_etc_hosts is on"
        yield command(
            f"echo {line} >> /etc/hosts", who="root", scope="this node", risk=risk, undo=undo, see=DEBIAN_HOSTS
        )
    else:
        yield say(f"Add a line with {ip} and the host name to /etc/hosts.", who="root")


def _delete_line(words: List[str]) -> str:
    """sed's command for the line of these words, of which none has a character that is special but the dot."""
    blank = "[[:space:]]"
    pattern = f"{blank}{blank}*".join(word.replace(".", r"\.") for word in words)
    return f"sed -i {shlex.quote(f'/^{blank}*{pattern}{blank}*$/d')} /etc/hosts"


# --------------------------------------------------------------------------- interfaces


def no_usable_interface(network: Network, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Bring one up."""
    down = [i.name for i in network.interfaces or () if i.kind != "loopback" and not nccl.leads_nowhere(i)]
    if engine_of(os) == "docker":
        yield Remedy("Give the container the host's network", (_host_network(),))
    steps: List[Step] = [command("ip -br link", scope="this node")]
    steps += [
        command(f"ip link set {plain(name)} up", who="root", scope="this node until reboot")
        for name in down
        if plain(name)
    ]
    steps.append(
        say("Check the cable, the switch port and DHCP of the interface to the other nodes.", who="network admin")
    )
    yield Remedy("Bring the interface to the other nodes up and give it an address", tuple(steps))


def loopback_chosen(network: Network, env: Env) -> Iterator[Remedy]:
    """Name the interface."""
    yield from _choose(network, env)


def doubtful_interface(network: Network, env: Env) -> Iterator[Remedy]:
    """Name the interface."""
    yield from _choose(network, env)


def chosen_interface_down(network: Network, env: Env, finding: Verdict, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Find out why there is no link, or use another interface."""
    name = plain(finding.subject)
    steps = (command(f"ip link set {name} up", who="root", scope="this node until reboot"),) if name else ()
    text = "Check cable, transceiver and switch port of this interface."
    if engine_of(os) == "":
        yield Remedy("Bring the link up", (*steps, say(text, who="network admin")))
    yield from _choose(network, env)


def slow_interface(network: Network, env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Use a faster one, or expect what it gives."""
    yield from _faster(network, env, finding)
    text = "Accumulate gradients over several steps, or compress them with a DDP communication hook, to send less."
    see = "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html"
    yield Remedy("Live with it: this speed is normal for the wire", (say(text, scope="this job", see=see),))


def interface_below_policy(network: Network, env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Use a faster one, or find out why the link is slow."""
    yield from _faster(network, env, finding)
    name = plain(finding.subject)
    steps = (command(f"ethtool {name}", who="root", scope="this node"),) if name else ()
    text = "Compare the speed with what cable, transceiver and switch port should give; a bad cable negotiates down."
    yield Remedy("Find out why the link is slow", (*steps, say(text, who="network admin")))


def _faster(network: Network, env: Env, finding: Verdict) -> Iterator[Remedy]:
    if "would be faster" in finding.measured:
        rates = ((nccl.wire_speed_gbit_s(i) or 0, i.name) for i in good_interfaces(network))
        yield _export(max(rates)[1], "Use the faster interface")


def socket_interface_missing(network: Network, env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Remove the variable, or name an interface that is there."""
    variable = finding.subject.split()[0] if finding.subject else "NCCL_SOCKET_IFNAME"
    good = good_interfaces(network)
    if variable == "GLOO_SOCKET_IFNAME":
        if good:
            text = "Gloo wants the exact name on each node: names differ between unlike machines."
            steps = (export(variable, good[0].name, scope="this job"), say(text))
            yield Remedy("Name an interface that is there", steps)
        yield Remedy("Let Gloo take the address of the host name", (unset(variable, scope="this job"),))
        return
    yield Remedy("Let NCCL choose by itself", (_without(env, variable),))
    if good:
        yield _export(good[0].name, "Name an interface that is there")


def _choose(network: Network, env: Env) -> Iterator[Remedy]:
    good = good_interfaces(network)
    if good:
        yield _export(good[0].name, "Name the interface that leads to the other nodes")
    if env.get("NCCL_SOCKET_IFNAME"):
        yield Remedy("Let NCCL choose by itself", (_without(env, "NCCL_SOCKET_IFNAME"),))


def _export(name: str, title: str) -> Remedy:
    text = "Where interfaces have different names, one list serves all nodes: NCCL_SOCKET_IFNAME==enp3s0,eno1."
    see = f"{NCCL_ENV}#nccl-socket-ifname"
    return Remedy(title, (export("NCCL_SOCKET_IFNAME", f"={name}", scope="this job", see=see), say(text, see=see)))


def _without(env: Env, name: str) -> Step:
    """Take a variable away where it is set: in the environment, or in a file."""
    source = next((v.source for v in env.variables or () if v.name == name), "environment")
    if source == "environment":
        return unset(name, scope="this job", see=NCCL_ENV)
    return say(
        f"Remove {name} from {source}.",
        who="root" if source.startswith("/etc") else "user",
        scope="this node",
        see=NCCL_ENV,
    )


def loopback_down() -> Iterator[Remedy]:
    """Bring it up."""
    up = command("ip link set lo up", who="root", scope="this node until reboot")
    yield Remedy("Bring it up (in a namespace: as its owner)", (up,))


def gloo_on_loopback(network: Network) -> Iterator[Remedy]:
    """Name another one, or let Gloo choose."""
    for interface in good_interfaces(network)[:1]:
        step = export("GLOO_SOCKET_IFNAME", interface.name, scope="this job", see=TORCHRUN)
        yield Remedy("Name the interface that leads to the other nodes", (step,))
    text = "Gloo then takes the address of the own host name, which must lead to the other nodes."
    yield Remedy("Let Gloo choose by itself", (unset("GLOO_SOCKET_IFNAME", scope="this job"), say(text)))


def address_behind_nat(os: Os) -> Iterator[Remedy]:
    """Use the host's network."""
    if os.container:
        yield Remedy("Give the container the host's network", (_host_network(),))
    if os.virtualisation == "wsl":
        text = (
            "Set networkingMode=mirrored in the section [wsl2] of %UserProfile%\\.wslconfig, then run wsl --shutdown."
        )
        see = "https://learn.microsoft.com/en-us/windows/wsl/networking#mirrored-mode-networking"
        yield Remedy("Give WSL the addresses of Windows", (say(text, who="user", scope="this node", see=see),))


def _host_network() -> Step:
    see = "https://docs.docker.com/engine/network/drivers/host/"
    return say(
        "Start the container with --network=host (docker and podman take the same option).", scope="this job", see=see
    )


# --------------------------------------------------------------------------- the master and firewalls


def master_name_unresolved(launch: Launch, env: Optional[Env] = None) -> Iterator[Remedy]:
    """Use the address."""
    if re.search(r"[\[\],\s]", launch.master_addr or ""):
        text = 'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        see = "https://slurm.schedmd.com/scontrol.html"
        yield Remedy("Expand Slurm's list and take its first node", (command(text, scope="this job", see=see),))
    text = "Set MASTER_ADDR (or --master-addr) to the first node's IP address, the same on every node."
    yield Remedy("Name the master by its address", (say(text, scope="this job", see=TORCHRUN),))
    text = "Add the master's name to DNS, or to /etc/hosts of every node."
    yield Remedy("Make the name known", (say(text, who="cluster admin", scope="all nodes"),))


def firewall_closed(
    network: Network,
    finding: Verdict,
    env: Optional[Env] = None,
    torch: Optional[Torch] = None,
    launch: Optional[Launch] = None,
) -> Iterator[Remedy]:
    """Trust the nodes' subnet, or narrow the range of ports and open it."""
    endpoint = best_endpoint(network, env, torch)
    subnet = nccl.network_of(endpoint.address) if endpoint else None
    ufw = finding.subject == "ufw"
    if subnet is not None:
        yield Remedy("Trust the subnet of the nodes, on every node", tuple(_trust(str(subnet), ufw)))
    yield Remedy("Narrow the range of ports and open it, on every node", tuple(_open_range(network, launch, ufw)))


def _trust(subnet: str, ufw: bool) -> Iterator[Step]:
    risk = f"every host in {subnet} can then reach every port of this node"
    if ufw:
        see = "https://manpages.ubuntu.com/manpages/jammy/en/man8/ufw.8.html"
        undo = f"ufw delete allow from {subnet}"
        yield command(f"ufw allow from {subnet}", who="root", scope="this node", risk=risk, undo=undo, see=see)
        return
    see = "https://manpages.ubuntu.com/manpages/noble/man5/firewalld.zones.5.html"
    rule = f"firewall-cmd --permanent --zone=trusted --add-source={subnet}"
    undo = f"firewall-cmd --permanent --zone=trusted --remove-source={subnet}; firewall-cmd --reload"
    yield command(rule, who="root", scope="this node", risk=risk, undo=undo, see=see)
    yield command("firewall-cmd --reload", who="root", scope="this node")


def _open_range(network: Network, launch: Optional[Launch], ufw: bool) -> Iterator[Step]:
    """Narrow the range to the example of NCCL's guide, and open it with the master's port, which stands outside it."""
    master = launch.master_port if launch is not None and launch.master_port else DEFAULT_PORT
    low, high = network.port_range or (32768, 60999)
    yield command(
        "sysctl -w net.ipv4.ip_local_port_range='50000 51000'",
        who="root",
        scope="this node until reboot",
        risk="leaves 1001 ports for outgoing connections to one address",
        undo=f"sysctl -w net.ipv4.ip_local_port_range='{low} {high}'",
        see=NCCL_NETWORK,
    )
    if ufw:
        yield command(f"ufw allow proto tcp to any port {master},50000:51000", who="root", scope="this node")
        return
    for ports in (master, "50000-51000"):
        yield command(f"firewall-cmd --permanent --add-port={ports}/tcp", who="root", scope="this node")
    yield command("firewall-cmd --reload", who="root", scope="this node")


# --------------------------------------------------------------------------- wear


def bond_member_down(finding: Verdict) -> Iterator[Remedy]:
    """Find out where the link is lost."""
    member = plain(finding.subject)
    look = command(f"ethtool {member}" if member else "ip link", who="root", scope="this node")
    text = "Look at the cable, the transceiver and the switch port; a member set down by hand comes back with ip link set up."
    yield Remedy("Bring the link back", (look, say(text, who="network admin")))


def bond_members_unequal() -> Iterator[Remedy]:
    """One speed for all."""
    text = "Give the members one speed: a port that trained lower has a cable, a transceiver or a setting of its own."
    yield Remedy("Find out why one is slower", (say(text, who="network admin"),))


def link_has_flapped(finding: Verdict) -> Iterator[Remedy]:
    """See whether it goes on, and where."""
    watch = command("ddp-doctor run --select rates,network --sample 60", scope="this node")
    text = "If it goes on: exchange the cable or the transceiver, look at the switch's log of the port."
    yield Remedy(f"See whether {finding.subject} still flaps", (watch, say(text, who="network admin")))


def conntrack_nearly_full(network: Network) -> Iterator[Remedy]:
    """A larger table, or no tracking between the nodes."""
    most = (network.sysctls or {}).get("net.netfilter.nf_conntrack_max") or 262_144
    yield Remedy("Make the table larger", (_sysctl("net.netfilter.nf_conntrack_max", 4 * most, most),))
    text = "Or leave the traffic between the nodes untracked (a notrack rule in nftables' raw table)."
    yield Remedy("Do not track what the nodes say to each other", (say(text, who="root"),))


def neighbour_table_nearly_full(network: Network) -> Iterator[Remedy]:
    """Larger thresholds: the second and the third belong together."""
    name = "net.ipv4.neigh.default.gc_thresh"
    most = (network.sysctls or {}).get(f"{name}3") or 1024
    steps = (_sysctl(f"{name}3", 8 * most, most), _sysctl(f"{name}2", 4 * most, most // 2))
    yield Remedy("Make the table larger", steps)


def backlog_too_small(network: Network, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """As many as there are ranks."""
    ranks = (launch.world_size if launch else None) or (policy.nnodes or 1) * (policy.nproc_per_node or 1)
    wanted = max(4096, 1 << (ranks - 1).bit_length())
    now = (network.sysctls or {}).get("net.core.somaxconn") or 4096
    yield Remedy("Let more connections wait, on the master", (_sysctl("net.core.somaxconn", wanted, now),))


def module_too_hot(finding: Verdict) -> Iterator[Remedy]:
    """Cool it, or exchange it."""
    text = f"Look at the fans and the air path of {finding.subject}'s port; a module that is hot among cool ones is to be exchanged."
    yield Remedy("Cool the module", (say(text, who="network admin"),))


def fec_differs(finding: Verdict) -> Iterator[Remedy]:
    """Let both ends agree by themselves."""
    name = plain(finding.subject) or "INTERFACE"
    undo = "ethtool --set-fec INTERFACE encoding, with what --show-fec told before"
    auto = command(f"ethtool --set-fec {name} encoding auto", who="root", scope="this node until reboot", undo=undo,
                   risk="the link goes down for a moment")  # fmt: skip
    yield Remedy("Compare both ends, and let them agree", (command(f"ethtool --show-fec {name}"), auto))


def _sysctl(name: str, value: int, now: int) -> Step:
    return command(
        f"sysctl -w {name}={value}",
        who="root",
        scope="this node until reboot",
        undo=f"sysctl -w {name}={now}; to keep the new value put it into a file in /etc/sysctl.d",
    )
