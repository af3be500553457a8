"""Writes the scripts for slurm.conf. Root runs them, so nobody else may be able to change them or what they start."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import ftslurm
from ftslurm.errors import FtslurmError, StateError, UsageError
from ftslurm.hooks.install.scripts import KEYS, LIMITS_S, SETTINGS, scripts
from ftslurm.slurm.cli_client import CliSlurmClient
from ftslurm.system.commands import run
from ftslurm.system.files import make_folder
from ftslurm.system.only_roots import check_only_roots, check_tree

_REPEATABLE_FROM = (24, 5)
_RECONFIGURE_IS_RESTART = (23, 11)
_REPEATABLE = frozenset({"Prolog", "Epilog", "EpilogSlurmctld"})
_GLOB = frozenset({"Prolog", "Epilog"})
_NO_HOLD = "nohold_on_prolog_fail"
_SHORT_S = 30


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


def _around(config: Mapping[str, str]) -> list[str]:
    """What the scripts need around them."""
    lines = []
    if config.get("HealthCheckInterval", "0").split(" ")[0] == "0":
        lines += ["HealthCheckInterval=300", "HealthCheckNodeState=ANY"]
    parameters = config.get("SchedulerParameters", "")
    if _NO_HOLD not in parameters:
        lines += [
            "# without it a job that met a bad node waits held until somebody releases it",
            f"SchedulerParameters={parameters + ',' if parameters else ''}{_NO_HOLD}",
        ]
    if not re.search(r"\b(Alloc|Contain)\b", config.get("PrologFlags", ""), re.IGNORECASE):
        flags = config.get("PrologFlags", "")
        lines += ["# checks all nodes of a job before it begins, spares too", f"PrologFlags={f'{flags},' if flags else ''}Alloc"]
    for key, value in config.items():
        found = re.match(r"\d+", value)
        if key in ("PrologEpilogTimeout", "PrologTimeout") and found and 0 < int(found[0]) <= LIMITS_S["prolog"] < 65534:
            lines.append(f"# {key}={found[0]} is not above the Prolog's own limit of {_SHORT_S} s: Slurm would drain the node")
        if key in ("PrologEpilogTimeout", "EpilogTimeout") and found and 0 < int(found[0]) <= LIMITS_S["epilog"]:
            lines.append(f"# {key}={found[0]}: `cleanup` and `reset_wait` of the hooks' settings have to end within it")
    return lines


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


def install_hooks(folder: Path, config: Path, slurm_conf: str, dry_run: bool) -> str:
    """What is to be written into slurm.conf, as text; the scripts are written unless it is a dry run.

    Raises: UsageError for a folder that is none, StateError where others could change what root runs.
    """
    for path in (folder, config):
        if not path.is_absolute():
            raise UsageError(f"{path} is not an absolute path", hint="slurm.conf takes nothing else")
    if " " in f"{folder}":
        raise UsageError(f"{folder}: slurm.conf cannot hold a path with a blank", hint="choose another folder")
    known = _config()
    state = (known or {}).get("StateSaveLocation", "")
    found = scripts(str(folder), sys.executable, str(config), slurm_conf, state)
    if not dry_run:
        if os.geteuid() != 0:
            raise StateError("only root can install the hooks", hint="run it as root, or with --dry-run to see the lines")
        _check_what_runs()
        make_folder(folder, 0o755)
        check_only_roots(folder)
        for script in found:
            _write(folder / script.name, script.text, 0o755)
        if not config.exists():
            make_folder(config.parent, 0o755)
            _write(config, SETTINGS, 0o644)
        check_only_roots(config)
    head = head_lines(str(folder), str(config), known)
    return "\n".join([*head, *conf_lines(str(folder), known), *sudo_lines(str(folder), _slurm_user(known))])


def _check_what_runs() -> None:
    """The interpreter, and all that it may import. Raises: StateError."""
    for place in (Path(sys.executable), Path(sys.prefix, "pyvenv.cfg")):
        check_only_roots(place)
    for place in dict.fromkeys((*import_path(sys.executable), Path(ftslurm.__file__).parent)):
        check_tree(place)


def _write(path: Path, text: str, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w") as file:
        os.fchmod(fd, mode)
        file.write(text)
    fresh.replace(path)


def _config() -> dict[str, str] | None:
    try:
        return CliSlurmClient(timeout_s=SLURM_TIMEOUT_S).config()
    except FtslurmError:
        return None


def _slurm_user(config: dict[str, str] | None) -> str:
    """`slurm` of `slurm(64030)`."""
    return (config or {}).get("SlurmUser", "").partition("(")[0]
