"""How to reach the controller, from the environment."""

from __future__ import annotations

from ftslurm.wrapper.shim.protocol.munge import handed_over

CHANNEL_VARIABLE = "FTSLURM_CHANNEL"


class Channel:
    """How to reach the controller: `1:port/launch:secret:address,address`, kept out of every command line. launch: which of
    its steps this is, counted from 1; 0 or missing for others than shims. `=address`: it listens there alone. secret: itself,
    or a credential of munge's for our user (`munge.socket.credential`), or a file of our user's (`file.path`).

    A step over the nodes of several jobs has several sruns, and each counts its tasks from 0: then it is
    `2:8/0-3,6-7:port:...`, how many tasks there are in all, and the ranks of this srun's in order.
    """

    def __init__(self, text: str) -> None:
        version, rest = text.split(":", 1)
        self.total, self.ranks = 0, None
        if version == "2":
            place, rest = rest.split(":", 1)
            total, _, ranks = place.partition("/")
            self.total, self.ranks = int(total), unfolded(ranks)
        elif version != "1":
            raise ValueError(f"channel version {version}")
        port, secret, addresses = rest.split(":", 2)
        port, _, launch = port.partition("/")
        self.port, self.launch = int(port), int(launch or 0)
        self.secret = handed_over(secret)
        self.only = addresses.startswith("=")
        self.addresses = [address for address in addresses.lstrip("=").split(",") if address]


def unfolded(text: str) -> list[int]:
    """`0-3,6` -> 0, 1, 2, 3, 6."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
