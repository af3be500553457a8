"""Where the output of a job is, attempt by attempt: which files, and which part of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ftslurm.errors import UsageError
from ftslurm.model import record as rec
from ftslurm.model.nodes import expand
from ftslurm.model.values import Value, replace

# As ftrun writes it to its stderr before an attempt (judge/starting.py); behind the rest of a line that was cut off, too. Earlier
# releases wrote it into the files of the ranks as well.
BANNER = re.compile(rb"ftrun: attempt (\d{1,9}) on ")
# As srun writes it before each line of a rank (--label).
_LABEL = re.compile(rb" *(\d{1,9}): ")


class Begun(Value):
    """An attempt. schedule: requeues before it. cycle: starts of the same command before it."""

    schedule: int = 0
    step: str = ""
    nodes: int = 1
    tasks: int = 1
    cycle: int = 0


class Outputs(Value):
    """What a ledger knows of the job's output."""

    files: tuple[str, ...]  # printed into by ftrun and script, of all schedulings
    ranks: tuple[tuple[str, str], ...]  # as in OutputTo, of the last
    label: bool  # label, logs: see OutputTo
    attempts: Mapping[int, Begun]
    logs: str = ""

    def check(self, attempt: int | None) -> None:
        """Raises: UsageError for an attempt that there was not."""
        if attempt is not None and attempt not in self.attempts:
            known = f"1 to {max(self.attempts)}" if self.attempts else "none has begun"
            raise UsageError(f"--attempt {attempt}: there was no such attempt", hint=f"attempts of this job: {known}")


def outputs_of(records: Iterable[rec.Record]) -> Outputs:
    files: dict[str, None] = {}
    to = rec.OutputTo(0.0, "")
    commands: list[str] = []  # what each attempt started
    attempts: dict[int, Begun] = {}
    last = Begun()
    for record in records:
        if isinstance(record, rec.OutputTo):
            files |= dict.fromkeys(record.files)
            to = record
        elif isinstance(record, (rec.AttemptBegan, rec.RankBegan)):
            last = replace(last, schedule=record.schedule, cycle=commands.count(record.step_key))
            if isinstance(record, rec.AttemptBegan):
                last = replace(last, step=record.step, nodes=len(expand(record.nodes)), tasks=record.tasks)
            attempts[record.attempt] = last
            commands.append(record.step_key)
    return Outputs(tuple(files), to.ranks, to.label, attempts, to.logs)


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
