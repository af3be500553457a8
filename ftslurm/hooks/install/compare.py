"""Are the hooks of every node those that this machine would install? Asked of all nodes at a time, by ClusterShell."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import ftslurm
from ftslurm.errors import UsageError
from ftslurm.hooks.install.scripts import KEYS, Script, scripts
from ftslurm.model.nodes import fold
from ftslurm.model.text import cut
from ftslurm.model.values import dataclass
from ftslurm.slurm.cli_client import CliSlurmClient

# %h is the node's name. No question may stand in the way of 500 nodes.
RSH = "ssh -oBatchMode=yes -oConnectTimeout=10 %h"
ANSWER_S = 60.0
_SUM = re.compile(r"([0-9a-f]{64}) [ *](/.+)")
_CONTROLLER = re.compile(r"SlurmctldHost(\[\d+\])?")
NONE = "-"
# Characters of why nothing is known.
MOST_WORDS = 72


@dataclass(frozen=True, slots=True)
class Hooks:
    """Of one machine. version: of the ftslurm that its hooks start. sums: file -> sha256."""

    version: str
    sums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """What a table says of one node, and of all that are like it."""

    hooks: str
    version: str
    settings: str

    @property
    def well(self) -> bool:
        return self.hooks == self.settings == "equal"


def question(folder: str, config: str) -> str:
    """For a shell on a node: the sums of the files, and the version that the hooks' Python has."""
    hooks = shlex.join(f"{folder}/{name}" for name in KEYS)
    python = rf"sed -n 's/.* \([^ ]*\) -I -m ftslurm[.]hooks[.].*/\1/p' {hooks} 2>/dev/null | head -n1"
    code = shlex.quote("import ftslurm; print('ftslurm', ftslurm.__version__)")
    return f"sha256sum {hooks} {shlex.quote(config)} 2>/dev/null; $({python}) -I -c {code}; true"


def read_answer(text: str) -> Hooks:
    """Other lines, of a banner or a profile, are passed over."""
    lines = text.splitlines()
    sums = {found[2]: found[1] for line in lines if (found := _SUM.fullmatch(line))}
    versions = [line.split()[1] for line in lines if re.fullmatch(r"ftslurm \S+", line)]
    return Hooks(versions[-1] if versions else "", sums)


def compared(here: Hooks, there: Hooks, config: str) -> Row:
    wanted = {path: digest for path, digest in here.sums.items() if path != config}
    missing = sorted(Path(path).name for path in wanted if path not in there.sums)
    differ = sorted(Path(path).name for path, digest in wanted.items() if there.sums.get(path, digest) != digest)
    told = [f"{word}: {', '.join(names)}" for word, names in (("missing", missing), ("differ", differ)) if names]
    if len(missing) == len(wanted):
        return Row("none", NONE, NONE)
    if not told and there.version != here.version:
        told = ["start another version" if there.version else "start a Python without ftslurm"]
    mine, theirs = here.sums.get(config), there.sums.get(config)
    settings = "equal" if mine == theirs else f"{'differ' if mine else 'only there'} ({theirs[:7]})" if theirs else "none there"
    return Row("; ".join(told) or "equal", there.version or NONE, settings)


def table(here: Hooks, rows: Mapping[str, Row]) -> Iterator[str]:
    """Each node stands in one row, together with those of which the same is told."""
    alike: dict[Row, list[str]] = {}
    for node, row in rows.items():
        alike.setdefault(row, []).append(node)
    worst_first = sorted(alike.items(), key=lambda one: one[0].well)
    told = [(fold(nodes), each.hooks, each.version, each.settings) for each, nodes in worst_first]
    cells = [("NODES", "HOOKS", "VERSION", "SETTINGS"), *told]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    versions = {row.version for row in rows.values() if row.version != NONE}
    if versions - {here.version}:
        yield f"more than one version: {here.version} here, {', '.join(sorted(versions - {here.version}))} there"


# --- the shell


def check(folder: Path, config: Path, slurm_conf: str, nodes: Sequence[str], rsh: str) -> tuple[str, bool]:
    """The table, and whether all is well. nodes: empty for all that Slurm knows, and slurmctld's hosts. Raises: UsageError for an
    `rsh` that names no node, SlurmSilent and its kind where Slurm has to tell.
    """
    if "%h" not in rsh:
        raise UsageError(f"--rsh {rsh}: nothing stands for the node", hint="put %h where its name belongs")
    client = CliSlurmClient()
    known = client.config()
    wanted = nodes or list(dict.fromkeys([*(node.name for node in client.nodes()), *_controllers(known)]))
    made = scripts(str(folder), sys.executable, str(config), slurm_conf, known.get("StateSaveLocation", ""))
    here = _here(made, folder, config)
    asked = shlex.quote(question(str(folder), str(config))).replace("%", "%%")
    rows = {
        node: compared(here, read_answer(text), str(config)) if ok else Row(f"unknown: {cut(text, MOST_WORDS)}", NONE, NONE)
        for node, (ok, text) in ask(wanted, f"{rsh} {asked}").items()
    }
    head = f"compared with ftslurm {here.version} on {os.uname().nodename}: {folder}, {config}"
    return "\n".join([head, *table(here, rows)]), all(row.well for row in rows.values())


def _here(made: Iterable[Script], folder: Path, config: Path) -> Hooks:
    sums = {str(folder / script.name): sha256(script.text.encode()).hexdigest() for script in made}
    if config.exists():
        sums[str(config)] = sha256(config.read_bytes()).hexdigest()
    return Hooks(ftslurm.__version__, sums)


def _controllers(config: Mapping[str, str]) -> list[str]:
    return [value.partition("(")[0] for key, value in config.items() if _CONTROLLER.fullmatch(key) and value]


def ask(nodes: Sequence[str], command: str) -> dict[str, tuple[bool, str]]:
    """node -> did it answer, and with what; else the last line of what the command complained of. %h: the node's name."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
    from ClusterShell.Task import task_self
    from ClusterShell.Worker.Exec import ExecWorker

    task = task_self()
    asked = NodeSet.fromlist(list(nodes), resolver=RESOLVER_NOGROUP)
    worker = ExecWorker(nodes=asked, handler=None, timeout=ANSWER_S, command=command, stderr=True)
    task.schedule(worker)
    worker.set_write_eof()
    task.resume()
    status = {node: status for status, names in worker.iter_retcodes() for node in names}

    def told(node: str) -> tuple[bool, str]:
        if status.get(node) == 0:
            return True, bytes(worker.node_buffer(node) or b"").decode(errors="replace")
        said = bytes(worker.node_error_buffer(node) or b"").decode(errors="replace").split("\n")
        return False, said[-1] or (f"no answer in {ANSWER_S:g} s" if node not in status else f"status {status[node]}")

    return {node: told(node) for node in asked}
