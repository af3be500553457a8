"""What the kernel counts of connections."""

from __future__ import annotations

import os
import socket
import time

from hypothesis import given
from hypothesis import strategies as st

from ftslurm.system.sockets import inodes_of, moved_by_tcp, network_bytes, parse_diag, tcp_bytes


def test_bytes_over_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            one.sendall(b"x" * 100_000)
            time.sleep(0.03)  # the kernel counts in ticks of up to 10 ms for how long it was kept waiting
            left = 100_000
            while left:
                left -= len(other.recv(left))
            inodes = [os.fstat(each.fileno()).st_ino for each in (one, other)]
            assert set(inodes) <= inodes_of([os.getpid()])
            until = time.monotonic() + 10
            while tcp_bytes()[inodes[0]][0] < 100_000:  # until the other end has said that it is there
                assert time.monotonic() < until
            assert tcp_bytes()[inodes[1]][1] == 100_000
            assert 10 <= moved_by_tcp()[inodes[0]].busy_ms < 10_000 and moved_by_tcp()[inodes[1]].busy_ms == 0
    assert inodes_of([2**30]) == set()
    assert (network_bytes(os.getpid()) or (0, 0))[1] > 0 and network_bytes(2**30) is None


@given(st.binary(max_size=400))
def test_whatever_the_kernel_says(message: bytes) -> None:
    assert parse_diag(message) is None or len(message) > 200
