"""Requests that Slurm allows only to root and SlurmUser: drain and undrain a node, list all users' jobs on it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.errors import SlurmUnavailable
from ftslurm.slurm import commands, parse
from ftslurm.slurm.cli_client import read_answer
from ftslurm.slurm.client import NodeView
from ftslurm.system.commands import Runner, run


def is_drained(view: NodeView) -> bool:
    return "DRAIN" in view.words


def is_to_reboot(view: NodeView) -> bool:
    """REBOOT_REQUESTED, from `scontrol reboot` on, and REBOOT_ISSUED."""
    return "REBOOT" in view.words


def is_out_of_service(view: NodeView) -> bool:
    """Is the node in a state for which a person gives a reason (drained, down)?"""
    words = {word.rstrip("*~#!%$@^-") for word in view.words.split("+")}
    return is_drained(view) or bool(words & {"FAIL", "FAILING", "DOWN"})


class SlurmAdmin:
    """By the command line; each request is made once, for Slurm's scripts have little time. timeout_s: for one request.

    Every method raises SlurmUnavailable without an answer, SlurmRefused with Slurm's words, UsageError for a node's name
    that is none.
    """

    def __init__(self, timeout_s: float, run: Runner = run) -> None:
        self._timeout_s = timeout_s
        self._runner = run
        self._config: dict[str, str] = {}

    def node(self, name: str) -> NodeView:
        views = parse.parse_nodes(self._ask(commands.show_node_argv(name)))
        if len(views) != 1:
            raise SlurmUnavailable(f"Slurm tells of {len(views)} nodes called {name}", hint="is the name right?")
        return views[0]

    def drain_unless_drained(self, name: str, reason: str, ours: str) -> str | None:
        """Drains the node, unless somebody else has taken it out of service: gives that reason then, else None.

        ours: what the reasons begin with that may be overwritten. Slurm is asked directly before.
        """
        view = self.node(name)
        if is_out_of_service(view) and not view.reason.startswith(ours):
            return view.reason
        self._ask(commands.drain_argv(name, reason))
        return None

    def undrain_if_ours(self, name: str, ours: str) -> bool:
        """Undrains the node if its reason begins with `ours`, by what Slurm says directly before; gives whether it did."""
        view = self.node(name)
        if not is_drained(view) or not view.reason.startswith(ours):
            return False
        self._ask(commands.undrain_argv(name))
        return True

    def jobs_on(self, name: str) -> tuple[tuple[int, int, str], ...]:
        """(number, user id, state) of every job that has resources on the node."""
        return parse.parse_jobs_on(self._ask(commands.jobs_on_argv(name)))

    def slurm_user(self) -> int | None:
        """The user that slurmctld runs as, None if Slurm does not tell. Asked once."""
        if not self._config:
            self._config = parse.parse_config(self._ask(commands.show_config_argv()))
        found = re.search(r"\((\d{1,10})\)$", self._config.get("SlurmUser", ""))
        return int(found[1]) if found else None

    def _ask(self, argv: Sequence[str]) -> str:
        return read_answer(self._runner(argv, self._timeout_s))
