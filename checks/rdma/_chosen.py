"""Which RDMA ports the checks judge: those that NCCL would use, without those that the policy leaves out."""

from typing import List, Optional

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Network, Rdma, Torch
from ddp_doctor.facts import Interface as NetworkInterface
from ddp_doctor.model import known
from ddp_doctor.policy import Policy


def chosen(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch]) -> List[nccl.HcaPort]:
    """Active ports that carry the job's data; none where a plug-in or TCP does. Second, storage and DPU ports are not here."""
    known(rdma.devices, rdma, "devices")
    ports = nccl.carrier(rdma, env, nccl.version_of(torch)).ports
    return [port for port in ports if not {port.name, port.device.name} & set(policy.ignore_hcas)]


def is_roce(port: nccl.HcaPort) -> bool:
    """Ethernet below it."""
    return port.port.link_layer == "Ethernet"


def interface_named(name: Optional[str], network: Optional[Network]) -> Optional[NetworkInterface]:
    """The network interface of that name: a port's, or that of one of its GIDs, which may be a VLAN over it."""
    found = (network.interfaces if network else None) or ()
    return next((interface for interface in found if interface.name == name), None)
