"""What ranks write down of themselves, and the proof that no attempt ran beside the next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# A line every few milliseconds, as long as the rank runs and until the file $STORY/enough is there in a later attempt
# than the first. bash has the time without another process, so the writer is the rank itself.
BEAT = """
while [ "$FTSLURM_ATTEMPT" = 1 ] || [ ! -e "$STORY/enough" ]; do
    echo "$FTSLURM_ATTEMPT $SLURM_PROCID $SLURMD_NODENAME $EPOCHREALTIME" >>"$STORY/beats.$SLURM_PROCID"
    read -t 0.01 <&9
done
exit 0
"""
# A pipe that nobody writes into, to wait at; `sleep` would be a process that outlives the rank by a moment.
RANK = 'exec 9<>"$STORY/wait.$SLURM_PROCID.$FTSLURM_ATTEMPT"; exec bash "$STORY/beat.sh"'
MAKE_PIPE = 'mkfifo "$STORY/wait.$SLURM_PROCID.$FTSLURM_ATTEMPT"; '


@dataclass(frozen=True)
class Beat:
    """time: Unix seconds."""

    attempt: int
    rank: int
    node: str
    time: float


def beats(folder: Path) -> list[Beat]:
    """All of them in order; the last line of a rank that was killed may be torn."""
    found = []
    for path in folder.glob("beats.*"):
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 4 and "." in words[3]:
                found.append(Beat(int(words[0]), int(words[1]), words[2], float(words[3])))
    return sorted(found, key=lambda beat: beat.time)


def overlaps(seen: list[Beat]) -> list[str]:
    """Every record of an older attempt that is younger than the first of a newer one, in words; none is the proof."""
    newest, began, found = 0, 0.0, []
    for beat in seen:
        if beat.attempt > newest:
            newest, began = beat.attempt, beat.time
        elif beat.attempt < newest:
            found.append(
                f"rank {beat.rank} of attempt {beat.attempt} on {beat.node} ran {beat.time - began:.3f} s into attempt {newest}"
            )
    return found
