"""Where ftrun listens: which address a setting means, and which port."""

from __future__ import annotations

import selectors
import socket
from pathlib import Path

import pytest

from ftslurm.errors import LaunchFailed, PolicyError
from ftslurm.model.settings.kinds import Layer
from ftslurm.model.settings.tree import resolve
from ftslurm.wrapper import wire
from ftslurm.wrapper.controller.joining import srun_ports
from ftslurm.wrapper.shim.connection import Channel
from ftslurm.wrapper.wire import Server, of_this_node, own_address

NODE = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.1.0.7", "fe80::1"], "ib0": ["fe80::2", "fd00:5::7"], "ib1": []}


@pytest.mark.parametrize(("wanted", "found"), [
    ("10.1.0.7", "10.1.0.7"),
    ("n7-ib", "n7-ib"),
    ("eth0", "10.1.0.7"),
    ("ib0", "fd00:5::7"),
    ("10.1.0.0/16", "10.1.0.7"),
    ("10.1.0.99/16", "10.1.0.7"),
    ("fd00:5::/64", "fd00:5::7"),
])  # fmt: skip
def test_an_address_a_network_or_an_interface(wanted: str, found: str) -> None:
    assert own_address(wanted, NODE) == found


@pytest.mark.parametrize(("wanted", "why"), [
    ("ib1", "ib1 has no address"),
    ("192.168.0.0/16", "no address of this node is in 192.168.0.0/16"),
    ("10.1/x", "10.1/x is not a network"),
])  # fmt: skip
def test_what_is_not_there_is_told_with_what_is(wanted: str, why: str) -> None:
    with pytest.raises(LaunchFailed, match=why) as caught:
        own_address(wanted, NODE)
    assert "eth0 10.1.0.7" in caught.value.hint


def test_this_node_has_a_loopback() -> None:
    assert "127.0.0.1" in of_this_node()["lo"]


def server(ports: tuple[int, int] | None) -> Server:
    return Server(selectors.DefaultSelector(), lambda *_: None, lambda *_: None, "127.0.0.1", ports)


def test_of_a_range_one_that_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchFailed, match=f"every port from {port} to {port} is taken"):
            server((port, port))
        low, high = max(1024, port - 20), min(65535, port + 20)
        for _ in range(5):
            found = server((low, high))
            assert low <= found.port <= high and found.port != port
            found.close()


def test_shims_are_told_when_no_other_address_will_do() -> None:
    found = server(None)
    open_to_all, only = Channel(found.channel_text(["n1"])), Channel(found.channel_text(["fd00::1"], only=True))
    found.close()
    assert (open_to_all.only, open_to_all.addresses) == (False, ["n1"])
    assert (only.only, only.addresses) == (True, ["fd00::1"])


@pytest.mark.parametrize(("said", "ports"), [("60000-60100", (60000, 60100)), ("0-0", None), ("", None), ("odd", None)])
def test_srun_s_range_is_ours(said: str, ports: tuple[int, int] | None) -> None:
    assert srun_ports({"SrunPortRange": said}) == ports


@pytest.mark.parametrize("raw", ["60000", "60100-60000", "80-90", "60000-70000", "a-b", "-5-6"])
def test_what_is_no_range_is_refused(raw: str) -> None:
    with pytest.raises(PolicyError, match="is not a port range"):
        resolve([Layer({"nodes.ports": raw}, {"nodes.ports": "here"})])


def test_a_range_is_read() -> None:
    assert resolve([Layer({"nodes.ports": "60000-60100"}, {"nodes.ports": "here"})]).settings.nodes.ports == (60000, 60100)


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_as_many_callers_may_wait_where_the_kernel_holds_few_for_a_socket(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Callers that it drops would wait for a greeting in vain."""
    somaxconn = tmp_path / "somaxconn"
    somaxconn.write_text("128\n")
    monkeypatch.setattr(wire, "SOMAXCONN", somaxconn)
    selector = selectors.DefaultSelector()
    found = Server(selector, lambda *_: None, lambda *_: None, address)
    assert len(found._listeners) == 32
    calls = [socket.create_connection(("127.0.0.1", found.port), 5.0) for _ in range(64)]
    for _ in range(100):
        for key, events in selector.select(0.0):
            key.data(events)
        if len(found._peers) == len(calls):
            break
    assert all(call.recv(1) for call in calls)
    with pytest.raises(LaunchFailed, match="is taken"):  # nobody else's, though its sockets share it
        server((found.port, found.port))
    for call in calls:
        call.close()
    found.close()
    somaxconn.write_text("16384\n")
    usual = server(None)
    assert len(usual._listeners) == 1
    usual.close()


def test_a_socket_that_cannot_share_the_port_is_none_of_the_server_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that does not listen would be reported by every select."""
    (tmp_path / "somaxconn").write_text("128\n")
    monkeypatch.setattr(wire, "SOMAXCONN", tmp_path / "somaxconn")
    monkeypatch.setattr(wire, "_SHARED", ())
    selector = selectors.DefaultSelector()
    found = Server(selector, lambda *_: None, lambda *_: None, "127.0.0.1")
    assert len(found._listeners) == 1 and selector.select(0.0) == []
    found.close()
