"""Whose drain a node's drain is, as far as the scripts on that node have to know."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.errors import FtslurmError
from ftslurm.hooks.state_file import Remembered
from ftslurm.policies.node.health import PREFIX
from ftslurm.slurm.admin import SlurmAdmin, is_drained
from ftslurm.slurm.client import NodeView


def drain(admin: SlurmAdmin, node: str, reason: str) -> str:
    """What came of it, as a word or a few. Raises: as SlurmAdmin does."""
    stands = admin.drain_unless_drained(node, reason, PREFIX)
    return "drained" if stands is None else f"drained by somebody else already ({stands})"


def undrain(admin: SlurmAdmin, node: str) -> str:
    """What came of it. Raises: as SlurmAdmin does."""
    return "undrained" if admin.undrain_if_ours(node, PREFIX) else "left as it is: its drain is somebody else's by now"


def known_now(admin: SlurmAdmin, node: str, known: Remembered) -> Remembered:
    """Without what a person has taken back meanwhile. Slurm is asked only where something speaks against the node."""
    if not known.proof:
        return known
    try:
        return taken_back(known, admin.node(node))
    except FtslurmError:
        return known


def taken_back(known: Remembered, view: NodeView | None) -> Remembered:
    """A node that was drained for its kernel log and is not any more was taken back by a person, who knows better."""
    if view is not None and not is_drained(view):
        return replace(known, proof="", drained=False)
    return known
