"""The errors ftslurm raises on purpose, and every exit status of its own.

A class says who can mend it; `message` says what happened and where, `hint` what to do.
The statuses follow sysexits(3). They keep clear of numbers with a meaning elsewhere: 93
(ft_launcher: do not restart), 16 and 17 (Megatron), 128+n (signals), 201 and 202 (DLRover).
In every other case ftrun ends with the exit status of the training program itself.
"""


class FtslurmError(Exception):
    """Base of all: one clear sentence, and what to do about it.

    Attributes: message (str), hint (str, may be empty), exit_status (int).
    """

    exit_status = 70  # EX_SOFTWARE: should not happen, please report

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(FtslurmError):
    """A command line that cannot be understood."""

    exit_status = 64  # EX_USAGE


class RequestRefused(FtslurmError):
    """`ftslurm control` and `drill`: ftrun has answered, and does not do what was asked for."""

    exit_status = 1


class NotTaken(FtslurmError):
    """`ftslurm control` and `drill`: what was asked for is written down, and no ftrun has taken it yet."""

    exit_status = 3


class PolicyError(FtslurmError):
    """A policy file, annotation or FTRUN_* variable that says something impossible."""

    exit_status = 65  # EX_DATAERR


class UnknownJob(FtslurmError):
    """A job that Slurm or the ledger does not know."""

    exit_status = 66  # EX_NOINPUT


class SlurmUnavailable(FtslurmError):
    """slurmctld did not answer in time. Says nothing about the job."""

    exit_status = 69  # EX_UNAVAILABLE


class LaunchFailed(FtslurmError):
    """The step could not be brought up, so the program never ran."""

    exit_status = 71  # EX_OSERR


class CommandMissing(FtslurmError):
    """A program that ftslurm needs (srun, scontrol) is not on PATH."""

    exit_status = 72  # EX_OSFILE


class StateError(FtslurmError):
    """The state folder or the ledger cannot be used: missing rights, no space, not a folder."""

    exit_status = 73  # EX_CANTCREAT


class NoRoom(StateError):
    """The state folder is fit, and full."""


class WireError(FtslurmError):
    """A message that is not of our making, damaged or out of order."""

    exit_status = 76  # EX_PROTOCOL


class SlurmRefused(FtslurmError):
    """Slurm understood and said no."""

    exit_status = 77  # EX_NOPERM


class CalledItself(FtslurmError):
    """The only `srun` (or another command of Slurm) to be found is ftrun under that name."""

    exit_status = 78  # EX_CONFIG


# Not an error: the job has been given back to Slurm and will run again.
REQUEUED_STATUS = 75  # EX_TEMPFAIL


def own_statuses() -> dict[int, str]:
    """Every exit status of ftrun's and ftslurm's own, and what it means."""
    found = {REQUEUED_STATUS: "The job has been given back to Slurm and will run again. Not an error."}
    for kind in [each for each in globals().values() if isinstance(each, type) and issubclass(each, FtslurmError)]:
        found[kind.exit_status] = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    return found | {FtslurmError.exit_status: "An error in ftslurm itself. It should not happen: please report it."}
