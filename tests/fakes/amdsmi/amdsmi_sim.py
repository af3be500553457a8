"""Moves the GPUs of the amdsmi stand-in: one JSON file."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# What a reset does. keeps: done, but the state stays. gone: the GPU does not come back.
RESETS = ("ok", "fail", "keeps", "gone")


def fresh_gpu(number: int) -> dict[str, Any]:
    return {
        "bus": f"0000:{16 + number:02x}:00.0", "uuid": f"{number:02x}ff74a1-0000-1000-8000-000000000000",
        "serial": f"0x{number:016X}", "listed": True, "lost": False, "ecc": 0, "bad_pages": 0, "threshold": 128,
        "busy": 0, "traffic": 0, "power": 140, "processes": [], "events": True,
    }  # fmt: skip


class AmdsmiSim:
    """Every change begins with what the file says and is written at once."""

    def __init__(self, path: str, gpus: int) -> None:
        self.path = path
        state = {"driver": True, "hang": "", "reset": "ok", "root": True, "events": []}
        self._write({**state, "gpus": [fresh_gpu(number) for number in range(gpus)]})

    def set(self, number: int, **values: object) -> None:
        with self._changed() as state:
            state["gpus"][number].update(values)

    def say(self, **words: object) -> None:
        """driver, hang (a call, `all` or empty), reset, root"""
        with self._changed() as state:
            state.update(words)

    def event(self, number: int, name: str, message: str = "") -> None:
        with self._changed() as state:
            state["events"].append([state["gpus"][number]["bus"], name, message])

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        with open(f"{self.path}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(self.path) as file:
                state = json.load(file)
            yield state
            self._write(state)

    def _write(self, state: dict[str, Any]) -> None:
        with open(f"{self.path}.new", "w") as file:
            json.dump(state, file)
        os.replace(f"{self.path}.new", self.path)
