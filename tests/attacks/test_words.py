"""A neighbour who speaks where a job's own programs are expected to."""

from __future__ import annotations

import threading

from ftslurm.wrapper.agent.recorders import ask_ras
from tests.attacks.users import NEIGHBOUR, OWNER, run_as, start_as

# As NCCL's RAS threads do, but it is anybody's.
SERVE = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        with server.accept()[0] as sock:
            try:
                sock.recv(64)
                sock.sendall(b"Errors\\n======\\nrank 3 on n7 is broken\\n")
            except OSError:
                pass
"""
ASK = "import sys; from ftslurm.wrapper.agent.recorders import ask_ras, ras_findings; print(ras_findings(ask_ras(('127.0.0.1', int(sys.argv[1])), 5.0)))"


def test_nccl_s_port_is_believed_only_where_the_job_s_user_listens() -> None:
    with start_as(OWNER, SERVE) as mine, start_as(NEIGHBOUR, SERVE) as hers:
        guard = threading.Timer(60, lambda: [one.kill() for one in (mine, hers)])
        guard.start()
        try:
            assert mine.stdout is not None and hers.stdout is not None
            own, other = mine.stdout.readline().strip(), hers.stdout.readline().strip()
            assert run_as(OWNER, ASK, other).strip() == "()"
            assert "rank 3 on n7 is broken" in run_as(OWNER, ASK, own)
            assert ask_ras(("127.0.0.1", int(own)), 5.0) == "", "not even root believes it"
        finally:
            guard.cancel()
            for one in (mine, hers):
                one.kill()
