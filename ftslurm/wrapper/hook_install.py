"""Writes the scripts for slurm.conf. Root runs them, so nobody else may be able to change them or what they start."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import ftslurm
from ftslurm.errors import FtslurmError, StateError, UsageError
from ftslurm.slurm.cli_client import CliSlurmClient
from ftslurm.wrapper.hook_lines import conf_lines, sudo_lines
from ftslurm.wrapper.hook_scripts import SETTINGS, scripts

SLURM_TIMEOUT_S = 5.0


def install_hooks(folder: Path, config: Path, slurm_conf: str, dry_run: bool) -> str:
    """What is to be written into slurm.conf, as text; the scripts are written unless it is a dry run.

    Raises: UsageError for a folder that is none, StateError where others could change what root runs.
    """
    for path in (folder, config):
        if not path.is_absolute():
            raise UsageError(f"{path} is no full path", hint="slurm.conf takes nothing else")
    if " " in f"{folder}":
        raise UsageError(f"{folder}: slurm.conf takes no path with a blank", hint="choose another folder")
    found = scripts(str(folder), sys.executable, str(config), slurm_conf)
    if not dry_run:
        if os.geteuid() != 0:
            raise StateError("the scripts are root's", hint="run it as root, or with --dry-run to see the lines")
        for place in (Path(sys.executable), Path(ftslurm.__file__)):
            check_only_roots(place)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        check_only_roots(folder)
        for script in found:
            _write(folder / script.name, script.text, 0o755)
        if not config.exists():
            config.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _write(config, SETTINGS, 0o644)
    known = _config()
    head = [f"# scripts in {folder}, settings in {config}; for slurm.conf, then `scontrol reconfigure`:"]
    return "\n".join([*head, *conf_lines(str(folder), known), *sudo_lines(str(folder), _slurm_user(known))])


def check_only_roots(path: Path) -> None:
    """Raises: StateError if anybody but root could exchange `path`: it, what it links to, or a folder above."""
    for place in _all_places(path):
        info = place.lstat()
        if stat.S_ISLNK(info.st_mode):
            continue  # a link has no rights of its own; its folder counts, and where it leads
        writable = info.st_mode & 0o022 and not (stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX)
        if info.st_uid != 0 or writable:
            raise StateError(
                f"{place} can be changed by others than root, and root would run what lies there",
                hint="install ftslurm in a folder of root's and call `ftslurm install-hooks` from there",
            )


def _all_places(path: Path) -> Iterator[Path]:
    for one in dict.fromkeys((path, Path(os.path.realpath(path)))):
        yield one
        yield from one.parents


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
