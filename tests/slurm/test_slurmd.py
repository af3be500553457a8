"""A look at a slurmd over the network, with sockets that behave as one does, or as a node without one."""

from __future__ import annotations

import socket
import threading

import pytest

from ftslurm.slurm.cli_client import slurmd_answers

LIMIT_S = 60.0


def test_a_slurmd_that_closes_a_connection_over_which_nothing_comes_is_alive() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            there, _ = server.accept()
            with there:
                assert there.recv(100) == b""

        thread = threading.Thread(target=serve)
        thread.start()
        alive, what = slurmd_answers("127.0.0.1", server.getsockname()[1], LIMIT_S)
        thread.join(LIMIT_S)
    assert alive is True and what.endswith("answers")


def test_a_slurmd_that_stands_still_is_not_though_the_kernel_takes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        alive, what = slurmd_answers("127.0.0.1", server.getsockname()[1], 0.5)
    assert alive is False and "does not answer within 0.5 s" in what


def test_where_nobody_listens_no_slurmd_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    alive, what = slurmd_answers("127.0.0.1", port, LIMIT_S)
    assert alive is False and "refused" in what


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 300, "ä.invalid"])
def test_a_name_that_cannot_be_looked_up_says_nothing(name: str) -> None:
    assert slurmd_answers(name, 6818, LIMIT_S)[0] is None
