"""What people were told is waited for."""

from __future__ import annotations


class WaitTold:
    """what: as it was said last; empty: nothing."""

    def __init__(self) -> None:
        self.what = ""
        self._shown = False  # where Slurm shows the job?

    def tell(self, what: str, shown: bool = True) -> bool:
        """False if it was told already. shown: where Slurm shows the job, too."""
        if self.what == what:
            return False
        self.what, self._shown = what, self._shown or shown
        return True

    def forget(self) -> None:
        """The next wait is told anew."""
        self.what = ""

    def over(self) -> bool:
        """Nothing is waited for. Was it shown where Slurm shows the job?"""
        shown, self._shown, self.what = self._shown, False, ""
        return shown
