"""Writes the scripts for slurm.conf. Root runs them, so nobody else may be able to change them or what they start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ftslurm
from ftslurm.errors import FtslurmError, StateError, UsageError
from ftslurm.hooks.install.lines import conf_lines, head_lines, sudo_lines
from ftslurm.hooks.install.rights import check_only_roots, check_tree, import_path
from ftslurm.hooks.install.scripts import SETTINGS, scripts
from ftslurm.slurm.cli_client import CliSlurmClient
from ftslurm.system.files import make_folder

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
