"""Files of their own for ranks, begun anew with each attempt, as torchrun and ft_launcher make them. Pure: the shims open them.

    FOLDER/attempt_0/LOCAL_RANK/stdout.log, stderr.log, error.json     logs.folder, with logs.redirects and logs.tee
    PREFIX_cycle0.log                                                  logs.cycle_files: both streams of all ranks, labelled

Source: DefaultLogsSpecs in torch.distributed.elastic.multiprocessing; PipeBasedLogsSpecs in nvidia_resiliency_ext.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from string import Template

from ftslurm.launchers.file_patterns import expand_pattern
from ftslurm.model.settings.streams import STDERR, STDOUT, streams, streams_of
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass

_FILES = {STDOUT: "stdout.log", STDERR: "stderr.log"}
NOWHERE = "/dev/null"


@dataclass(frozen=True, slots=True)
class StreamTo:
    """Where one stream goes. path: of a file, empty for none. label, shown_label: before each line there, and on the console.
    console: where the shim's own stream goes, too."""

    path: str
    label: str
    console: bool
    shown_label: str


@dataclass(frozen=True, slots=True)
class RankLogs:
    """folder: empty for none; `%n` in it is the slot of the node, `%%` a percent sign. redirects, tee: model/settings/streams.py.
    console_ranks: local ranks that are shown there; empty: all. cycle_files: path, empty for none. line_prefix: before lines
    that `tee` shows, with ${role_name}, ${rank} and ${local_rank}."""

    folder: str = ""
    redirects: str = "0"
    tee: str = "0"
    console_ranks: tuple[int, ...] = ()
    cycle_files: str = ""
    line_prefix: str = ""

    def __bool__(self) -> bool:
        return bool(self.folder or self.cycle_files or self.console_ranks)

    def streams(self, rank: int, place: tuple[int, int], size: int, cycle: int, role: str) -> dict[int, StreamTo]:
        """By stream; one that is not in it goes where the shim's own goes. place: slot and local rank. size: ranks of the step.
        cycle: attempts before this one."""
        if self.cycle_files:
            to = StreamTo(cycle_file(self.cycle_files, cycle), f"{rank:>{len(str(size - 1))}}: ", False, "")
            return {STDOUT: to, STDERR: to}
        slot, local = place
        shown, tee = not self.console_ranks or local in self.console_ranks, streams_of(self.tee, local)
        written = (streams_of(self.redirects, local) | tee) if self.folder else 0
        prefix = Template(self.line_prefix).safe_substitute(role_name=role, rank=rank, local_rank=local)
        found = {}
        for stream, name in _FILES.items():
            if written & stream:
                path = f"{self.rank_folder(slot, local, cycle)}/{name}"
                found[stream] = StreamTo(path, "", shown and bool(tee & stream), prefix)
            elif not shown:
                found[stream] = StreamTo(NOWHERE, "", False, "")
        return found

    def rank_folder(self, slot: int, local: int, cycle: int) -> str:
        return f"{expand_pattern(self.folder, {'n': str(slot)}, partly=True)}/attempt_{cycle}/{local}" if self.folder else ""

    def files(self, slot: int, local: int, cycle: int) -> tuple[str, ...]:
        """Those that the rank at that place writes itself."""
        if not self.folder or self.cycle_files:
            return ()
        written = streams_of(self.redirects, local) | streams_of(self.tee, local)
        return tuple(f"{self.rank_folder(slot, local, cycle)}/{name}" for stream, name in _FILES.items() if written & stream)

    def place_of_errors(self) -> tuple[str, bool] | None:
        """(pattern of the file with stderr, do its lines begin with the rank?) for people, as in output_place; None: not here."""
        if self.cycle_files:
            return cycle_file(self.cycle_files.replace("%", "%%"), "*"), True
        if not self.folder or {self.redirects, self.tee} <= {"0", "1"}:
            return None
        rank = "*" if "%n" in self.folder.replace("%%", "") else "%t"
        return f"{self.folder}/attempt_*/{rank}" + ("" if ":" in self.redirects + self.tee else "/stderr.log"), False

    def as_text(self) -> str:
        """The text for the ledger; empty if there are no such files."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":")) if self else ""


def rank_logs(settings: Settings) -> RankLogs:
    return RankLogs(
        settings.log_folder, settings.redirects, settings.tee, settings.console_ranks, settings.cycle_files, settings.line_prefix
    )


def from_text(text: str) -> RankLogs:
    """Which files there are, of what `as_text` wrote; what makes no sense is none."""
    try:
        tree = json.loads(text) if text else {}
        folder, cycle_files = str(tree.get("folder", "")), str(tree.get("cycle_files", ""))
        return RankLogs(folder, streams(tree.get("redirects", 0)), streams(tree.get("tee", 0)), cycle_files=cycle_files)
    except (ValueError, RecursionError, AttributeError):
        return RankLogs()


def cycle_file(path: str, cycle: int | str) -> str:
    """`/a/train.log` -> `/a/train_cycle0.log`; without a suffix it gets `.log`."""
    whole = PurePosixPath(path)
    return f"{path.removesuffix(whole.suffix)}_cycle{cycle}{whole.suffix or '.log'}"


def told(found: Mapping[int, StreamTo]) -> dict[str, list[object]]:
    """The message to a shim."""
    return {str(stream): [to.path, to.label, to.console, to.shown_label] for stream, to in found.items()}
