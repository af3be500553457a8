"""Processes of an older attempt whose shim was killed: they are found by their environment, and ended."""

from __future__ import annotations

import os
import time

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, signal
from ftslurm.wrapper.shim.pages import PAGE_VARIABLE
from ftslurm.wrapper.shim.processes import RESCAN_S, environ_of, send_signal

if TYPE_CHECKING:
    from collections.abc import Mapping


def left_before(page: str, env: Mapping[str, str]) -> list[int]:
    """Processes on this node of an older attempt of the same ftrun, in another of its steps: their shim was killed. Where
    Slurm tells the processes of a job by their parents (proctrack/linuxproc), nobody else ends them.

    page, env: of the command to come. A job that they have submitted has all their variables, but for the job's number.
    """
    same = {os.fsencode(f"{name}={env[name]}") for name in ("SLURM_JOB_ID", "SLURMD_NODENAME") if name in env}
    found, mark = [], f"{PAGE_VARIABLE}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        words = environ_of(int(name))
        pages = [os.fsdecode(word[len(mark) :]) for word in words if word.startswith(mark)]
        if len(same) == 2 and same <= set(words) and any(_is_older(other, page) for other in pages):
            found.append(int(name))
    return found


def _is_older(page: str, than: str) -> bool:
    """Of the same ftrun, and of another step."""
    (folder, _, place), (ours, _, our_place) = page.rpartition("/"), than.rpartition("/")
    number, our_number = place.rpartition(".")[2], our_place.rpartition(".")[2]
    if folder == ours or _family(folder) != _family(ours):
        return False
    return number.isdigit() and our_number.isdigit() and int(number) < int(our_number)


def _family(folder: str) -> str:
    return folder.rpartition(".")[2].partition("-")[0]


def end_left_before(page: str, env: Mapping[str, str], limit_s: float) -> tuple[set[int], list[int]]:
    """Kill what is left of older attempts; gives all that was found, and those that outlive it."""
    found, deadline = set(), time.monotonic() + limit_s
    while (left := left_before(page, env)) and time.monotonic() < deadline:
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        found.update(left)
        time.sleep(RESCAN_S)
    return found, left
