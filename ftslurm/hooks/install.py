"""Writes the scripts for slurm.conf, and compares those of all nodes.

Root runs them, so nobody else may be able to change them or what they start.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import ftslurm
from ftslurm.errors import FtslurmError, StateError, UsageError
from ftslurm.hooks.scripts import KEYS, Script, scripts, shell_file
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.site import Site, SiteChecks
from ftslurm.model.text import cut
from ftslurm.model.values import Value
from ftslurm.policies.site import examine
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.system.commands import run
from ftslurm.system.files import check_only_roots, check_tree, make_folder, replace_file

# --- are the hooks of every node those that this machine would install? Asked of all nodes at a time, by ClusterShell

# %h is the node's name. No question may stand in the way of 500 nodes.
RSH = "ssh -oBatchMode=yes -oConnectTimeout=10 %h"
ANSWER_S = 60.0
_SUM = re.compile(r"([0-9a-f]{64}) [ *](/.+)")
_CONTROLLER = re.compile(r"SlurmctldHost(\[\d+\])?")
NONE = "-"
# Characters of why nothing is known.
MOST_WORDS = 72


class Hooks(Value):
    """Of one machine. version: of the ftslurm that its hooks start. sums: file -> sha256."""

    version: str
    sums: Mapping[str, str]


class Row(Value):
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


def read_node_answer(text: str) -> Hooks:
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


def _table(here: Hooks, rows: Mapping[str, Row]) -> Iterator[str]:
    """Each node stands in one row, together with those of which the same is told."""
    alike: dict[Row, list[str]] = {}
    for node, row in rows.items():
        alike.setdefault(row, []).append(node)
    worst_first = sorted(alike.items(), key=lambda one: one[0].well)
    told = [(fold_nodes(nodes), each.hooks, each.version, each.settings) for each, nodes in worst_first]
    cells = [("NODES", "HOOKS", "VERSION", "SETTINGS"), *told]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    versions = {row.version for row in rows.values() if row.version != NONE}
    if versions - {here.version}:
        yield f"more than one version: {here.version} here, {', '.join(sorted(versions - {here.version}))} there"


# --- the shell


def compare_nodes(folder: Path, config: Path, slurm_conf: str, nodes: Sequence[str], rsh: str) -> tuple[str, bool]:
    """The table, and whether all is well. nodes: empty for all that Slurm knows, and slurmctld's hosts. Raises: UsageError for an
    `rsh` that names no node, SlurmSilent and its kind where Slurm has to tell.
    """
    if "%h" not in rsh:
        raise UsageError(f"--rsh {rsh}: nothing stands for the node", hint="put %h where its name belongs")
    client = SlurmClient()
    known = client.config()
    wanted = nodes or list(dict.fromkeys([*(node.name for node in client.nodes()), *_controllers(known)]))
    made = scripts(str(folder), sys.executable, str(config), slurm_conf, known.get("StateSaveLocation", ""))
    here = _here(made, folder, config)
    asked = shlex.quote(question(str(folder), str(config))).replace("%", "%%")
    rows = {
        node: compared(here, read_node_answer(text), str(config)) if ok else Row(f"unknown: {cut(text, MOST_WORDS)}", NONE, NONE)
        for node, (ok, text) in _ask(wanted, f"{rsh} {asked}").items()
    }
    head = f"compared with ftslurm {here.version} on {os.uname().nodename}: {folder}, {config}"
    return "\n".join([head, *_table(here, rows)]), all(row.well for row in rows.values())


def _here(made: Iterable[Script], folder: Path, config: Path) -> Hooks:
    sums = {str(folder / script.name): sha256(script.text.encode()).hexdigest() for script in made}
    if config.exists():
        sums[str(config)] = sha256(config.read_bytes()).hexdigest()
    return Hooks(ftslurm.__version__, sums)


def _controllers(config: Mapping[str, str]) -> list[str]:
    return [value.partition("(")[0] for key, value in config.items() if _CONTROLLER.fullmatch(key) and value]


def _ask(nodes: Sequence[str], command: str) -> dict[str, tuple[bool, str]]:
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


_REPEATABLE_FROM = (24, 5)
_RECONFIGURE_IS_RESTART = (23, 11)
_REPEATABLE = frozenset({"Prolog", "Epilog", "EpilogSlurmctld"})
_GLOB = frozenset({"Prolog", "Epilog"})
# Checks of catalogs/site-checks.yaml; and what they ask for, as it is by default.
_AROUND = ("HealthCheckInterval", "nohold_on_prolog_fail", "PrologFlags", "PrologEpilogTimeout")
_NOT_TOLD = {"SLURM_VERSION": "", "HealthCheckInterval": "0", "SchedulerParameters": "", "PrologFlags": ""}


def head_lines(folder: str, config: str, known: Mapping[str, str] | None) -> list[str]:
    """What comes before the lines may be used, and what makes Slurm use them. known: of `scontrol show config`, None without
    an answer. Seen: slurmd drains a node on which the file that Prolog names is not there.
    """
    return [
        f"# scripts in {folder}, settings in {config}; first run this on every node and on slurmctld's host, or install into a",
        "# folder that all of them see: a node on which slurm.conf names a Prolog that is not there is drained by Slurm.",
        f"# {config} is read on each node by itself; a node without it runs on the defaults.",
        *_activation(known or {}),
    ]


def _activation(config: Mapping[str, str]) -> list[str]:
    """Until 23.11, where a reconfigure starts the daemon anew, slurmctld looks once, as it starts, whether there is an
    EpilogSlurmctld. Seen: 22.05.8 runs it only after a restart, 24.11.5 and 26.05 after a reconfigure; docs/slurm-facts.md,
    "Prolog, Epilog and TaskProlog".
    """
    named = any(re.fullmatch(r"EpilogSlurmctld(\[\d+\])?", name) and value for name, value in config.items())
    if named or _version(config) >= _RECONFIGURE_IS_RESTART:
        return ["# For slurm.conf, then `scontrol reconfigure`:"]
    before = "" if config.get("SLURM_VERSION") else "before Slurm 23.11 also "
    return [
        f"# For slurm.conf, then `scontrol reconfigure`, and {before}`systemctl restart slurmctld` (jobs go on): without",
        "# the restart this slurmctld never runs EpilogSlurmctld.",
    ]


def conf_lines(folder: str, config: Mapping[str, str] | None) -> list[str]:
    """config: of `scontrol show config`, None if Slurm did not answer. Comments say what to do where a line will not do."""
    lines = [] if config is not None else ["# Slurm did not answer, so what slurm.conf holds already is unknown"]
    known = config or {}
    for name, key in KEYS.items():
        if key:
            lines += _line(key, f"{folder}/{name}", known)
    return [*lines, *_around(known)]


def _line(key: str, ours: str, config: Mapping[str, str]) -> list[str]:
    there = [value for name, value in config.items() if re.fullmatch(rf"{key}(\[\d+\])?", name) and value]
    if ours in there:
        return [f"# already there: {key}={ours}"]
    if not there:
        return [f"{key}={ours}"]
    if key in _REPEATABLE and _version(config) >= _REPEATABLE_FROM:
        return [f"# beside {key}={', '.join(there)}, which stays: all run, in reverse alphabetical order", f"{key}={ours}"]
    if key in _GLOB:
        return [
            f"# {key}={there[0]} is there, and this Slurm takes one line: put links to both into a folder and name",
            f"#   {key}=/etc/slurm/{key.lower()}.d/*   (one that fails stops the rest)",
        ]
    return [f"# {key}={there[0]} is there, and Slurm takes one: call {ours} from it, and mind its exit status"]


def _around(config: Mapping[str, str]) -> Iterator[str]:
    """What the scripts need around them: what `ftslurm doctor` would say of them in slurm.conf."""
    from ftslurm.config.catalog_files import load_site_checks

    named = {key: f"ftslurm/{name}" for name, key in KEYS.items() if key}
    checks = {name: check for name, check in load_site_checks().slurm.items() if name in _AROUND}
    for finding in examine(Site({**_NOT_TOLD, **config, **named}), SiteChecks({}, checks)):
        if finding.changes:
            yield from (f"# {finding.reason}", *(change.line for change in finding.changes))


def sudo_lines(folder: str, slurm_user: str) -> list[str]:
    """For an EpilogSlurmctld that is not root's; it reads each ledger as the owner of the job."""
    if slurm_user in ("", "root"):
        return []
    return [
        f"# SlurmUser={slurm_user} becomes a job's owner by sudo; in /etc/sudoers.d/ftslurm on the controller's node:",
        f"#   {slurm_user} ALL=(ALL,!root) NOPASSWD: {folder}/as_owner",
    ]


def _version(config: Mapping[str, str]) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    return (int(found[1]), int(found[2])) if found else (0, 0)


PYTHON_TIMEOUT_S = 30.0


def import_path(python: str) -> tuple[Path, ...]:
    """Where the hooks' interpreter looks for modules: it is asked as they start it. Raises: StateError."""
    done = run([python, "-I", "-c", "import json, sys; print(json.dumps(sys.path))"], PYTHON_TIMEOUT_S)
    try:
        found = json.loads(done.stdout) if done.status == 0 else None
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise StateError(f"{python} did not tell where it looks for modules: {done.stderr.strip()[-200:]}")
    return tuple(Path(entry) for entry in found if Path(str(entry)).is_absolute())  # the rest are names of import hooks


# --- writes the scripts for slurm.conf. Root runs them, so nobody else may be able to change them or what they start

SLURM_TIMEOUT_S = 5.0


def write_hooks(folder: Path, config: Path, slurm_conf: str, dry_run: bool) -> str:
    """What is to be written into slurm.conf, as text; the scripts are written unless it is a dry run.

    Raises: UsageError for a folder that is none, StateError where others could change what root runs.
    """
    for path in (folder, config):
        if not path.is_absolute():
            raise UsageError(f"{path} is not an absolute path", hint="slurm.conf takes nothing else")
    if " " in f"{folder}":
        raise UsageError(f"{folder}: slurm.conf cannot hold a path with a blank", hint="choose another folder")
    known = _config()
    state, user = ((known or {}).get(key, "") for key in ("StateSaveLocation", "SlurmUser"))
    found = scripts(str(folder), sys.executable, str(config), slurm_conf, state)
    if not dry_run:
        if os.geteuid() != 0:
            raise StateError("only root can install the hooks", hint="run it as root, or with --dry-run to see the lines")
        _check_what_runs()
        make_folder(folder, 0o755)
        check_only_roots(folder)
        for script in found:
            replace_file(folder / script.name, script.text.encode(), 0o755)
        if not config.exists():
            make_folder(config.parent, 0o755)
            replace_file(config, shell_file("settings.yaml").encode(), 0o644)
        check_only_roots(config)
    head = head_lines(str(folder), str(config), known)
    return "\n".join([*head, *conf_lines(str(folder), known), *sudo_lines(str(folder), user.partition("(")[0])])


def _check_what_runs() -> None:
    """The interpreter, and all that it may import. Raises: StateError."""
    for place in (Path(sys.executable), Path(sys.prefix, "pyvenv.cfg")):
        check_only_roots(place)
    for place in dict.fromkeys((*import_path(sys.executable), Path(ftslurm.__file__).parent)):
        check_tree(place)


def _config() -> dict[str, str] | None:
    try:
        return SlurmClient(timeout_s=SLURM_TIMEOUT_S).config()
    except FtslurmError:
        return None
