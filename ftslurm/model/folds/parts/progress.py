"""How far a job's training has come, and how long its attempts have lived since it last came further."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model.record import AttemptEnded, IterationSeen
from ftslurm.model.values import dataclass

# A program that tells no steps has come further if it has lived for so many times as long as in any try before, and for
# this long at least: the start of Python from a cold file system takes some seconds more than from a warm one.
LIVED_FACTOR, LIVED_LEAST_S = 2.0, 30.0


@dataclass(frozen=True, slots=True)
class Progress:
    furthest: int = 0  # the training step that any attempt has come to
    made_at: float = 0.0  # when progress was last made, or an attempt lived so much longer; Unix seconds
    began_at: float = 0.0  # of the attempt; 0 once its trouble has begun
    lived_s: float = 0.0  # of the attempt that ended last, until its trouble began
    last_step: int = 0  # of that attempt
    longest_s: float = 0.0  # the longest life of an attempt since progress was last made
    most_beats: int = 0  # of an attempt since then
    checkpoints_told: bool = False  # has the program ever said that a checkpoint is complete?
    iteration: int = 0  # see IterationSeen
    in_vain: int = 0  # see IterationSeen

    def attempt_began(self, at: float) -> Progress:
        return replace(self, began_at=at)

    def trouble_seen(self, at: float) -> tuple[Progress, bool]:
        """Is it progress, too? An attempt has lived until its trouble began; how long its ranks took to stop tells nothing."""
        lived_s = at - self.began_at if self.began_at else 0.0
        made = bool(self.longest_s) and lived_s >= max(LIVED_FACTOR * self.longest_s, LIVED_LEAST_S)
        ended = replace(self, began_at=0.0, lived_s=lived_s)
        ended = ended._made(at) if made else ended
        return replace(ended, longest_s=max(ended.longest_s, lived_s)), made

    def attempt_ended(self, attempt: AttemptEnded) -> tuple[Progress, bool]:
        """Is it progress?

        Steps tell it best. Of a program that tells none, so many more beats than in any try before do, or that it has saved what
        it has done since its start; what is saved at once holds nothing new.
        """
        ended = replace(self, last_step=attempt.step)
        if attempt.step or self.furthest:
            if attempt.step <= self.furthest:
                return ended, False
            return replace(ended, furthest=attempt.step)._made(attempt.at), True
        further = self.most_beats > 0 and attempt.beats >= LIVED_FACTOR * self.most_beats
        made = further or (bool(attempt.saved) and self.lived_s >= LIVED_LEAST_S)
        ended = ended._made(attempt.at) if made else ended
        return replace(ended, most_beats=max(ended.most_beats, attempt.beats)), made

    def checkpoint_told(self) -> Progress:
        return replace(self, checkpoints_told=True)

    def iteration_seen(self, seen: IterationSeen) -> Progress:
        return replace(self, iteration=seen.iteration, in_vain=seen.in_vain)

    def _made(self, at: float) -> Progress:
        return replace(self, longest_s=0.0, most_beats=0, made_at=at)
