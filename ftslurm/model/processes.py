"""A process, as much of it as tells whose it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Process:
    """started: Unix seconds; with the pid it names one process for ever. command: for people, cut off. state: psutil's word."""

    pid: int
    parent: int
    user_id: int
    name: str
    started: float
    command: str = ""
    state: str = ""
