"""The pages below a task's: whose they are, which of them train, and why there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ftslurm.sdk import probe as layout
from ftslurm.sdk.page import PageState, page_paths, parse_page, pid_namespace
from ftslurm.wrapper.agent.evidence.connections import read_bytes, read_text
from ftslurm.wrapper.agent.evidence.probe_words import ProbeState, parse_probe
from ftslurm.wrapper.shim.processes import descendants

INJECTED = "/ftslurm/sdk/inject"  # below where the rank has the package, which in a container is another place
MAPS_BYTES = 8 << 20
Page = tuple[str, PageState, ProbeState]  # with its path


def pages_of(task: str, attempt: int) -> list[Page]:
    """Of one start of a task, those with a probe. task: its FTSLURM_PAGE."""
    found = []
    for path in page_paths(task):
        data = read_bytes(path)
        page, state = parse_page(data), parse_probe(data)
        if page is not None and state is not None and page.attempt == attempt:
            found.append((path, page, state))
    return found


def without_launchers(found: Sequence[Page], command: int | None) -> tuple[list[Page], list[str]]:
    """Gives the pages that train, and the other pages: of processes without groups that wait for none and have started a process
    that trains.

    These are launchers such as torchrun, `accelerate launch`, or the parent of multiprocessing's ranks: each imports
    torch.distributed as a rank does.
    """
    doubtful = [each for each in found if not (each[2].groups_seen or each[2].in_ns or each[2].left)]
    if len(found) < 2 or not doubtful:
        return list(found), []
    pids = {path: pid_here(page, command) for path, page, _ in found}
    above = {parent for pid in pids.values() if pid for parent in _ancestors(pid)}
    others = [path for path, _, _ in doubtful if pids[path] in above]
    return [each for each in found if each[0] not in others], others


def _ancestors(pid: int) -> Iterator[int]:
    """The ancestors of a process of this pid namespace, from its parent on."""
    for _ in range(64):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read(4096).rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return
        if pid <= 1:
            return
        yield pid


def pid_here(page: PageState, command: int | None) -> int | None:
    """The pid of the page's process in our pid namespace: the page holds the number in its own."""
    if page.namespace == pid_namespace():
        return page.pid
    for pid in [command, *descendants(command)] if command else ():
        inside = re.search(r"^NSpid:\s*(.*)$", read_text(f"/proc/{pid}/status"), re.M)
        if inside and inside[1].split()[-1] == str(page.pid):
            return pid
    return None


def why_no_probe(pid: int) -> str:
    """Why a Python process with torch has no probe: it was started without our folder on its path, or in a container that has
    neither the folder nor our variables. Empty for any other process, or if unknown.
    """
    env = dict(word.partition("=")[::2] for word in read_text(f"/proc/{pid}/environ", MAPS_BYTES).split("\0"))
    if not env.get(layout.PAGE_VARIABLE) or env.get(layout.WATCH_VARIABLE) in layout.LEVELS:
        return _why_uninjected(pid, env) if "libtorch_python" in read_text(f"/proc/{pid}/maps", MAPS_BYTES) else ""
    return ""


def _why_uninjected(pid: int, env: Mapping[str, str]) -> str:
    if not env.get(layout.PAGE_VARIABLE):
        return "something has dropped ftrun's variables (--cleanenv of a container, env -i)"
    for word in read_text(f"/proc/{pid}/cmdline").split("\0")[1:]:
        if not re.fullmatch(r"-[bBdEiIOPqsSuvx]+", word):
            break
        if set(word) & set("EIS"):
            return f"its Python was started with {word}"
    injected = [place for place in env.get("PYTHONPATH", "").split(":") if place.endswith(INJECTED)]
    if not injected:
        return "something has set PYTHONPATH anew, where it should add to it"
    try:
        Path(f"/proc/{pid}/root{injected[0]}").stat()
    except FileNotFoundError:
        return f"its container has no {injected[0].removesuffix(INJECTED)}/ftslurm: mount it there"
    except OSError:
        pass  # the process has ended, or hides its files from us
    return ""
