"""NCCL's RAS: its text, written after the user guide's examples, and a server that speaks it, or does not."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from ftslurm.wrapper.agent import recorders as nccl_ras
from ftslurm.wrapper.agent.recorders import address_of, ask_ras, ras_findings

BEHIND = """\
NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.13s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32  MISMATCH  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
"""


def test_what_is_wrong_is_kept_and_no_more() -> None:
    found = ras_findings(BEHIND)
    assert found[0] == "INCOMPLETE" and "  Process 3487984 on node 172.16.64.213 managing GPU 5" in found
    assert "  6 ranks have launched up to operation 6649" in found and not [line for line in found if "Nodes" in line]


@pytest.mark.parametrize(
    "text", ["", "HTTP/1.1 400 Bad Request\r\n\r\n", BEHIND.split("Errors\n===")[0], "===\n" * 50, "Errors\n======"]
)
def test_nothing_wrong_or_something_else(text: str) -> None:
    assert ras_findings(text) == ()


def test_an_answer_without_end_is_bounded() -> None:
    assert len(ras_findings("Errors\n======\n" + "x\n" * 10_000)) == 40


@pytest.mark.parametrize(
    ("value", "address"),
    [("", ("localhost", 28028)), ("n1:30000", ("n1", 30000)), (":30000", ("localhost", 30000)), ("n1:x", ("localhost", 28028)), ("n1:99999", ("localhost", 28028))],
)  # fmt: skip
def test_where_to_ask(value: str, address: tuple[str, int]) -> None:
    assert address_of({"NCCL_RAS_ADDR": value}) == address


def serve(answer: bytes, close: bool) -> tuple[tuple[str, int], threading.Thread]:
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with server:
            peer, _ = server.accept()
            with peer:
                assert peer.recv(100) == b"verbose status\n"
                peer.sendall(answer)
                if not close:
                    peer.settimeout(30)
                    peer.recv(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return server.getsockname(), thread


def test_an_answer_from_a_server() -> None:
    address, thread = serve(BEHIND.encode(), close=True)
    assert ask_ras(address) == BEHIND
    thread.join(30)


def test_a_server_that_does_not_finish_costs_the_time_and_no_more() -> None:
    address, thread = serve(b"half", close=False)
    assert ask_ras(address, 0.3) == "half"
    thread.join(30)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    assert ask_ras(address, 1.0) == ""


def test_what_it_answers_rules_no_terminal() -> None:
    answer = "Errors\n======\nrank 3 \x1b]0;owned\x07\x1b[2J is \u202egone\r\n"
    assert ras_findings(answer) == ("rank 3 ?]0;owned??[2J is ?gone",)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "", "::"])
def test_whose_a_listener_is_the_kernel_says(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as server:
        port = server.getsockname()[1]
        for called in {"127.0.0.1": ["127.0.0.1"], "::1": ["::1"], "": ["127.0.0.1"], "::": ["::1", "127.0.0.1"]}[host]:
            assert nccl_ras.listeners(called, port) == {os.geteuid()}
    assert nccl_ras.listeners("127.0.0.1", port) == set()


def test_an_answer_of_another_user_s_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "listeners", lambda host, port: {os.geteuid() + 1})
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert ask_ras(server.getsockname(), 5.0) == ""
