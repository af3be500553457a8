"""Who has called this program within its job: shells, with the script that they run, and other programs, the nearest first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ftslurm.model.values import dataclass

PROC = Path("/proc")
MAX_BYTES = 1_000_000  # of a script
SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash"})
# They end with the status of the command that they run, and do nothing because of it.
_HAND_ON = frozenset({
    "timeout", "nice", "ionice", "nohup", "env", "stdbuf", "time", "taskset", "numactl", "setsid", "chrt", "salloc", "unbuffer",
})  # fmt: skip
# bash keeps its script open there, and stands behind the top-level command that it executes, also in its subshells; a command in
# the background may see a later one. Seen on bash 5.1 and 5.2; dash and zsh do not.
_SCRIPT_OF_BASH = 255
_STEP = "slurmstepd"
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """text: of the script; None for a program that is no shell, or a shell whose script cannot be read. offset: see above,
    None if not known. name: of the script or program."""

    text: bytes | None
    offset: int | None
    name: str


def callers(own: frozenset[str], pid: int | None = None, proc: Path = PROC) -> Iterator[Caller]:
    """own: the names of this program, which may be behind its own wrappers. pid: of the nearest, our parent if None.

    Beyond `salloc`, which is called from outside the job, other programs than shells do not count, nor does a person at a prompt.
    """
    pid, outside = os.getppid() if pid is None else pid, False
    for _ in range(_DEPTH):
        words = _command_line(pid, proc)
        if pid <= 1 or not words or words[0].startswith(_STEP):
            return
        name = _base(words[0]).lstrip("-")
        outside = outside or name == "salloc"
        if name in SHELLS:
            if _is_at_a_prompt(words, pid, proc):
                return
            yield _script(words, pid, proc)
        elif name not in _HAND_ON and not any(_base(word) in own for word in words[:2]):
            if not outside:
                yield Caller(None, None, name)
            return
        pid = _parent(pid, proc)


def killed_after_s(pid: int | None = None, proc: Path = PROC) -> float:
    """How long after its signal a `timeout -k` above this program kills it, seconds; 0: none does. Source: timeout(1)."""
    pid = os.getppid() if pid is None else pid
    for _ in range(_DEPTH):
        words = _command_line(pid, proc)
        name = _base(words[0]) if words else ""
        if name not in _HAND_ON:
            return 0.0
        if name == "timeout":
            return _kill_after_s(words[1:])
        pid = _parent(pid, proc)
    return 0.0


def _kill_after_s(words: list[str]) -> float:
    from getopt import GetoptError, getopt  # loads gettext

    try:
        options, _ = getopt(words, "fpvk:s:", ["kill-after=", "signal=", "foreground", "preserve-status", "verbose"])
        text = next((value for name, value in reversed(options) if name in ("-k", "--kill-after")), "0")
        return float(text.rstrip("smhd")) * _UNITS.get(text[-1:], 1.0)
    except (GetoptError, ValueError):
        return 0.0


def _script(words: list[str], pid: int, proc: Path) -> Caller:
    """What the shell runs: the file that bash has open, the text behind -c, or the first argument that is no option."""
    place = proc / str(pid)
    with suppress(OSError, ValueError):
        file = (place / "fd" / str(_SCRIPT_OF_BASH)).readlink()
        if not str(file).startswith("/dev/"):
            info = (place / "fdinfo" / str(_SCRIPT_OF_BASH)).read_text().split()
            return Caller(_read(place / "fd" / str(_SCRIPT_OF_BASH)), int(info[info.index("pos:") + 1]), file.name)
    options = [word for word in words[1:] if word.startswith(("-", "+"))]
    rest = [word for word in words[1:] if not word.startswith(("-", "+"))]
    name = words[0].rpartition("/")[2]
    if any("c" in option and not option.startswith("--") for option in options) and rest:
        return Caller(rest[0].encode(errors="surrogateescape"), None, f"{name} -c")
    with suppress(OSError):
        return Caller(_read(place / "cwd" / rest[0]), None, _base(rest[0])) if rest else Caller(None, None, name)
    return Caller(None, None, name)


def _is_at_a_prompt(words: list[str], pid: int, proc: Path) -> bool:
    """An interactive shell: no script, and a terminal to read from."""
    if any(not word.startswith("-") or "c" in word.strip("-") for word in words[1:]):
        return False
    with suppress(OSError):
        return str((proc / str(pid) / "fd/0").readlink()).startswith(("/dev/pts/", "/dev/tty"))
    return False


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES)


def _command_line(pid: int, proc: Path) -> list[str]:
    try:
        return (proc / str(pid) / "cmdline").read_text(errors="surrogateescape").split("\0")[:-1]
    except OSError:
        return []


def _parent(pid: int, proc: Path) -> int:
    try:
        return int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _base(word: str) -> str:
    return word.rpartition("/")[2]
