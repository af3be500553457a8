"""Does the slurmd of a node answer? Asks it over the network, since slurmctld notices a dead node only after minutes."""

from __future__ import annotations

import socket
import time

from ftslurm.errors import FtslurmError
from ftslurm.model.text import whole
from ftslurm.slurm.client import SlurmClient

# Where a node that names none listens. Source: slurm.conf(5), SlurmdPort.
DEFAULT_PORT = 6818


def port_of(client: SlurmClient) -> int:
    """The cluster's slurmd port, for nodes without their own; 0 if slurmctld does not answer."""
    try:
        port = client.config().get("SlurmdPort", "")
    except FtslurmError:
        return 0
    return whole(port) or 0


def answers(address: str, port: int, limit_s: float) -> tuple[bool | None, str]:
    """Whether somebody is there who reads, None where that cannot be told, and what was seen.

    A connection alone is no proof: the kernel accepts it for a slurmd that stands still. So nothing is asked, and an
    slurmd that runs closes at once. `port` 0: the default.
    """
    what = f"its slurmd ({address} port {port or DEFAULT_PORT})"
    deadline = time.monotonic() + limit_s
    try:
        with socket.create_connection((address, port or DEFAULT_PORT), timeout=limit_s) as there:
            there.shutdown(socket.SHUT_WR)
            there.settimeout(max(0.1, deadline - time.monotonic()))
            there.recv(1)
            return True, f"{what} answers"
    except (socket.gaierror, UnicodeError) as error:
        return None, f"{address} cannot be looked up: {error}"
    except TimeoutError:
        return False, f"{what} does not answer within {limit_s:g} s"
    except ConnectionResetError:
        return True, f"{what} answers"
    except OSError as error:
        return False, f"{what} cannot be reached: {error.strerror}"
