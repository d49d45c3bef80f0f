"""Anonymising keeps what verdicts rest on and nothing that identifies."""

import ipaddress
import json

import pytest
from ddp_doctor.anonymise import Anonymiser

FACTS = {
    "name": "gpu07",
    "how": {"user": "aturing"},
    "network": {
        "hostname": "gpu07",
        "fqdn": "gpu07.lab.example.org",
        "interfaces": [
            {"name": "eth0", "mac": "3c:ec:ef:12:34:56", "addresses": [{"ip": "10.1.2.3"}, {"ip": "2001:db8::7"}]}
        ],
        "hosts_lines": ["127.0.1.1 gpu07.lab.example.org gpu07", "127.0.0.1 localhost"],
        "default_route": {"gateway": "10.1.2.1"},
    },
    "rdma": {"devices": [{"ports": [{"gids": [{"gid": "0000:0000:0000:0000:0000:ffff:0a01:0203"}]}]}]},
    "disk": {
        "mounts": [{"role": "home", "path": "/home/aturing", "options": ["rw", "addr=10.1.9.9"]}],
        "quotas": [{"place": "filer3:/export/home"}],
    },
    "kernel_log": {"events": [{"text": "nfs: server filer4.lab not responding, still trying"}]},
    "torch": {"cudnn": "7.6.5.32"},
    "launch": {"master_addr": "gpu01"},
    "env": {
        "variables": [
            {"name": "SLURM_NODELIST", "value": "gpu[01-07],bigmem[1,3]"},
            {"name": "SLURM_SUBMIT_HOST", "value": "login-private1"},
            {"name": "http_proxy", "value": "http://<redacted>@proxy.corp.example:3128"},
        ]
    },
}


def test_nothing_that_identifies_is_left():
    text = json.dumps(Anonymiser(FACTS).data(FACTS))
    for secret in (
        "gpu07",
        "gpu01",
        "aturing",
        "10.1.2.3",
        "10.1.2.1",
        "2001:db8::7",
        "0a01:0203",
        "3c:ec:ef",
        "lab.example",
        "bigmem",
        "login-private",
        "corp.example",
        "10.1.9.9",
        "filer3",
        "filer4",
    ):
        assert secret not in text
    for kept in ("7.6.5.32", "127.0.1.1", "127.0.0.1 localhost", "eth0"):
        assert kept in text


def test_the_same_thing_gets_the_same_name_everywhere():
    new = Anonymiser(FACTS).data(FACTS)
    ip = new["network"]["interfaces"][0]["addresses"][0]["ip"]
    gid = ipaddress.ip_address(new["rdma"]["devices"][0]["ports"][0]["gids"][0]["gid"])
    assert gid.ipv4_mapped == ipaddress.ip_address(ip)
    assert new["name"] == new["network"]["hostname"]
    assert new["name"] in new["network"]["hosts_lines"][0].split()


def test_sets_of_nodes_still_name_the_same_nodes():
    anonymiser = Anonymiser(FACTS, ["10.1.2.9 storage1.lab.example.org storage1\n"])
    stem = anonymiser.text("gpu07").rstrip("0123456789")
    assert anonymiser.text("gpu[01-07] gpu07 gpu01") == f"{stem}[01-07] {stem}07 {stem}01"
    assert "gpu" not in stem
    assert "storage" not in anonymiser.text("storage1 storage1.lab.example.org")
    assert anonymiser.text("gpus /dev/nvidia0 gpuX eth0") == "gpus /dev/nvidia0 gpuX eth0"


def test_kernel_spellings_in_recordings_follow():
    anonymiser = Anonymiser(FACTS)
    new = ipaddress.ip_address(anonymiser.text("10.1.2.3"))
    assert anonymiser.text("eth0 0302010A 00000000") == f"eth0 {new.packed[::-1].hex().upper()} 00000000"


@pytest.mark.parametrize(
    ("one", "other", "bits"),
    [
        ("10.1.2.3", "10.1.2.200", 24),
        ("10.1.16.1", "10.1.31.1", 20),
        ("192.168.1.1", "192.168.2.1", 22),
        ("2001:db8::1", "2001:db8::2", 126),
    ],
)
def test_subnets_are_kept(one, other, bits):
    anonymiser = Anonymiser(FACTS)
    a, b = (anonymiser.address(ipaddress.ip_address(text)) for text in (one, other))
    shift = a.max_prefixlen - bits
    assert int(a) >> shift == int(b) >> shift
    assert int(a) >> shift - 1 != int(b) >> shift - 1


@pytest.mark.parametrize("text", ["127.0.1.1", "169.254.1.1", "0.0.0.0", "255.255.255.0", "::1"])
def test_addresses_that_name_no_machine_stay(text):
    assert str(Anonymiser(FACTS).address(ipaddress.ip_address(text))) == text


@pytest.mark.parametrize("text", ["10.9.9.9", "172.20.1.1", "192.168.7.7", "8.8.8.8"])
def test_private_stays_private(text):
    old = ipaddress.ip_address(text)
    assert Anonymiser(FACTS).address(old).is_private == old.is_private or not old.is_private


def test_localhost_identifies_nobody():
    facts = {**FACTS, "network": {**FACTS["network"], "fqdn": "localhost"}}
    assert Anonymiser(facts).data(facts)["network"]["fqdn"] == "localhost"


def test_words_of_the_document_are_no_names():
    facts = {
        **FACTS,
        "rdma": {"pci_hcas": ["0000:5e:00.0 15b3:1021 mlx5_core"], "devices": [{"rate": "400 Gb/sec (4X NDR)"}]},
        "topology": {"devices": [{"kind": "gpu", "driver": "mlx5_core"}]},
    }
    new = Anonymiser(facts).data(facts)
    assert (new["rdma"], new["topology"]) == (facts["rdma"], facts["topology"])
