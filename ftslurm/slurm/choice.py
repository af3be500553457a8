"""Chooses the Slurm client."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from ftslurm.errors import CommandMissing, FtslurmError, UsageError
from ftslurm.slurm.client import SlurmClient

log = logging.getLogger(__name__)

KINDS = ("auto", "cli", "pyslurm")


def choose_client(kind: str = "auto", timeout_s: float = 60.0, env: Mapping[str, str] = os.environ) -> SlurmClient:
    """The client of this kind; timeout_s: for one request with all its tries. env: what asks Slurm runs in it.

    auto: pyslurm where it is installed and answers, else the command line, which serves on every Slurm.

    Raises: UsageError for another word; CommandMissing for `pyslurm` where it cannot be used.
    """
    if kind not in KINDS:
        raise UsageError(f"`{kind}` is not a Slurm client", hint=f"one of {', '.join(KINDS)}")
    if kind == "cli" or (kind == "auto" and not _is_installed("pyslurm")):
        return _cli(timeout_s, env)
    try:
        return _pyslurm(timeout_s, env)
    except FtslurmError as error:
        if kind == "pyslurm":
            raise CommandMissing(error.message, error.hint) from None
        log.info("pyslurm is installed but does not work here, so ftslurm uses scontrol: %s", error)
        return _cli(timeout_s, env)


def _is_installed(module: str) -> bool:
    """Is the module installed? Found without an import, which would load Slurm's library into this process."""
    from importlib.util import find_spec

    return find_spec(module) is not None


def _cli(timeout_s: float, env: Mapping[str, str]) -> SlurmClient:
    from ftslurm.slurm.cli_client import CliSlurmClient

    return CliSlurmClient(timeout_s=timeout_s, env=env)


def _pyslurm(timeout_s: float, env: Mapping[str, str]) -> SlurmClient:
    from ftslurm.slurm.pyslurm_child import ChildSlurmClient

    client = ChildSlurmClient(timeout_s, env=env)
    client.start()
    return client
