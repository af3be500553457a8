"""Where the output of a job is, attempt by attempt: which files, and which part of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ftslurm.errors import UsageError
from ftslurm.model import record as rec
from ftslurm.model.nodes import expand
from ftslurm.model.values import Value, field

# As ftrun writes it to its stderr before an attempt (judge/starting.py); behind the rest of a line that was cut off, too. Earlier
# releases wrote it into the files of the ranks as well.
BANNER = re.compile(rb"ftrun: attempt (\d{1,9}) on ")
# As srun writes it before each line of a rank (--label).
_LABEL = re.compile(rb" *(\d{1,9}): ")


class Outputs(Value):
    """What a ledger knows of the job's output."""

    files: tuple[str, ...]  # printed into by ftrun and script, of all schedulings
    ranks: tuple[tuple[str, str], ...]  # as in OutputTo, of the last
    label: bool  # label, logs: see OutputTo
    schedule_of: dict[int, int]  # schedule_of, step_of: attempt -> requeues before it, and its step
    step_of: dict[int, str]
    logs: str = ""
    size_of: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # attempt -> nodes and ranks
    cycle_of: Mapping[int, int] = field(default_factory=dict)  # attempt -> starts of the same command before it

    @property
    def last(self) -> int:
        return max(self.schedule_of, default=0)

    def check(self, attempt: int | None) -> None:
        """Raises: UsageError for an attempt that there was not."""
        if attempt is not None and attempt not in self.schedule_of:
            known = f"1 to {self.last}" if self.last else "none has begun"
            raise UsageError(f"--attempt {attempt}: there was no such attempt", hint=f"attempts of this job: {known}")


def outputs_of(records: Iterable[rec.Record]) -> Outputs:
    files: dict[str, None] = {}
    ranks: tuple[tuple[str, str], ...] = ()
    label, logs = False, ""
    sizes: dict[int, tuple[int, int]] = {}
    begun: list[str] = []  # what each attempt started
    cycles: dict[int, int] = {}
    schedules: dict[int, int] = {}
    steps: dict[int, str] = {}
    for record in records:
        if isinstance(record, rec.OutputTo):
            files |= dict.fromkeys(record.files)
            ranks, label, logs = record.ranks, record.label, record.logs
        elif isinstance(record, rec.AttemptBegan):
            schedules[record.attempt], steps[record.attempt] = record.schedule, record.step
            sizes[record.attempt] = len(expand(record.nodes)), record.tasks
        elif isinstance(record, rec.RankBegan):
            schedules[record.attempt], steps[record.attempt] = record.schedule, max(steps.values(), default="")
            sizes[record.attempt] = next(reversed(sizes.values()), (1, 1))
        if isinstance(record, (rec.AttemptBegan, rec.RankBegan)):
            cycles[record.attempt] = begun.count(record.step_key)
            begun.append(record.step_key)
    return Outputs(tuple(files), ranks, label, schedules, steps, logs, sizes, cycles)


def banners(lines: Iterable[bytes]) -> list[tuple[int, int]]:
    """(where the line of each banner begins, its attempt), in order."""
    found, at = [], 0
    for line in lines:
        if b"ftrun: attempt " in line and (match := BANNER.search(line)):
            found.append((at + match.start(), int(match[1])))
        at += len(line)
    return found


def part_of(marks: Sequence[tuple[int, int]], attempt: int) -> tuple[int, int | None] | None:
    """(first byte, end or None for that of the file) of what `attempt` printed; None where the file has nothing of it.

    What stands before the first banner is of the first attempt in the file, and a file without any has one attempt.
    """
    if not marks or attempt < marks[0][1]:
        return 0, marks[0][0] if marks else None
    for number, (at, told) in enumerate(marks):
        if told == attempt:
            end = next((later for later, other in marks[number + 1 :] if other != attempt), None)
            return at, end
    return None


def of_rank(lines: Iterable[bytes], rank: int) -> Iterable[bytes]:
    """Lines that srun has labelled with the rank, without the label."""
    for line in lines:
        found = _LABEL.match(line)
        if found and int(found[1]) == rank:
            yield line[found.end() :]
