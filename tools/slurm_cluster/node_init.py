"""The first process of a node that is apart: gives it file systems of its own, and buries what ends there.

    node_init.py [--own-run] FOLDER NODE HOSTNAME [SHARED ...]

It runs in new namespaces (mount, PID, IPC, host name, network). Its death is a power cut: the kernel ends all else in
them. Standard library only; one process a node, so it is kept small.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

# What a node has for itself. Shared folders below them are bound in again.
OWN = ("/tmp", "/dev/shm")  # noqa: S108
MS_BIND = 4096


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2). Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def lay(folder: Path, shared: list[str]) -> None:
    # Held open, a folder can still be reached (by /proc/self/fd) when another file system covers its path.
    hidden = {path: os.open(path, os.O_PATH) for path in shared if path.startswith(tuple(f"{own}/" for own in OWN))}
    for path in OWN:
        mount("tmpfs", path, "tmpfs", data="mode=1777")
    for path, handle in hidden.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{handle}", path, "", MS_BIND)
        os.close(handle)
    mount(str(folder / "hosts"), "/etc/hosts", "", MS_BIND)


def lay_run(folder: Path) -> None:
    """/run, where a node without a slurm.conf keeps the one that it was sent, and munge's socket where it is looked for
    before that."""
    mount("tmpfs", "/run", "tmpfs", data="mode=755")
    Path("/run/munge").mkdir()
    Path("/run/munge/munge.socket.2").symlink_to(folder / "munge/munge.socket")
    mount("/dev/null", str(folder / "slurm.conf"), "", MS_BIND)


def main() -> None:
    own_run = sys.argv[1:2] == ["--own-run"]
    folder, node, host_name, *shared = sys.argv[1 + own_run :]
    socket.sethostname(host_name)
    lay(Path(folder), [folder, *shared])
    mount(f"{folder}/munge-{node}", f"{folder}/munge", "", MS_BIND)
    if own_run:
        lay_run(Path(folder))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are buried by the kernel
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    (Path(folder) / "run" / f"{node}.ready").touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
