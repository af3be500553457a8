"""What people were told that ftrun waits for."""

from __future__ import annotations


class WaitTold:
    """what: the last message; empty: none."""

    def __init__(self) -> None:
        self.what = ""
        self._shown = False  # was it shown where Slurm shows the job?

    def tell(self, what: str, shown: bool = True) -> bool:
        """Tell people; False if they were told already. shown: also where Slurm shows the job."""
        if self.what == what:
            return False
        self.what, self._shown = what, self._shown or shown
        return True

    def forget(self) -> None:
        """The next wait is told again."""
        self.what = ""

    def over(self) -> bool:
        """Nothing is waited for. Gives whether it was shown where Slurm shows the job."""
        shown, self._shown, self.what = self._shown, False, ""
        return shown
