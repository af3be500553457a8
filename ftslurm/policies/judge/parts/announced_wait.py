"""What people were told that ftrun waits for, and where Slurm shows the job."""

from __future__ import annotations


class WaitTold:
    """what: the last message; empty: none. shown: attempt and phase that the job's comment tells; None: nothing of this job."""

    def __init__(self, shown: tuple[int, str] | None) -> None:
        self.what = ""
        self.shown = shown

    def tell(self, what: str) -> bool:
        """Tell people; False if they were told already."""
        if self.what == what:
            return False
        self.what = what
        return True

    def forget(self) -> None:
        """The next wait is told again."""
        self.what = ""
