"""ft_launcher's record of each cycle (cycle_info_dir), for tools that read it: one JSON file per cycle, and a link to the last
one.

    cycle_info.JOB.REQUEUES.CYCLE      cycle_info.JOB.current

A thread writes them: a hanging file system does not delay the loop. Source: cycle_info_writer.py of nvidia_resiliency_ext.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from ftslurm.launchers.rank_logs import cycle_file
from ftslurm.model import record as rec
from ftslurm.model.folds.history import History, restarts
from ftslurm.model.nodes import expand, fold_nodes

END_WAIT_S = 5.0  # seconds for the last file, when the job is over


class Cycles:
    """link: to the last one. granted: nodes of the allocation. log: logs.cycle_files, empty for none. say: prints a problem,
    once. past: of the job."""

    def __init__(self, link: Path, granted: Sequence[str], log: str, say: Callable[[str], object], past: History) -> None:
        self._link, self._granted, self._log, self._say, self._past = link, granted, log, say, past
        self._open: dict[str, object] = {}
        self._files: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, daemon=True)
        self._writer.start()

    def record(self, told: rec.Record) -> None:
        """Write what `told` changes."""
        self._past = self._past.add(told)
        if isinstance(told, rec.AttemptBegan):
            nodes = expand(told.nodes)
            cycle = restarts(self._past, told.step_key)
            self._open = {
                "job_id": self._link.stem.rpartition(".")[2], "attempt_index": told.schedule, "cycle_number": cycle,
                "cycle_start_time": iso(told.at), "cycle_end_time": "",
                "cycle_log_file": cycle_file(self._log, cycle) if self._log else "",
                "active_nodes": told.nodes, "standby_nodes": fold_nodes({*self._granted} - {*nodes}),
                "active_ranks": f"0-{told.tasks - 1}" if told.tasks > 1 else "0", "generation": 0,
            }  # fmt: skip
            self._files.put(self._open)
        elif isinstance(told, (rec.AttemptEnded, rec.Finished)) and self._open:
            self._files.put({**self._open, "cycle_end_time": iso(told.at)})
            self._open = {}

    def end(self) -> None:
        self._files.put(None)
        self._writer.join(END_WAIT_S)

    def _write_all(self) -> None:
        failed = False
        while (cycle := self._files.get()) is not None:
            try:
                self._write(cycle)
            except OSError as error:
                if not failed:
                    self._say(f"cycle_info_dir: {error.filename or self._link} cannot be written: {error.strerror}")
                failed = True

    def _write(self, cycle: dict[str, object]) -> None:
        """Write the whole file or nothing. Raises: OSError."""
        self._link.parent.mkdir(parents=True, exist_ok=True)
        path = self._link.with_suffix(f".{cycle['attempt_index']}.{cycle['cycle_number']}")
        fresh = path.with_name(f"{path.name}.tmp")
        fresh.write_text(json.dumps(cycle, indent=2))
        fresh.replace(path)
        new = self._link.with_suffix(".current.tmp")
        with suppress(FileNotFoundError):
            new.unlink()
        new.symlink_to(path.name)
        new.replace(self._link)


def iso(at: float) -> str:
    """The time in ISO 8601. at: Unix seconds."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat().replace("+00:00", "Z")
