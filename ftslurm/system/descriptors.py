"""How many files and connections this process may have open: one for each rank and node of a job."""

from __future__ import annotations

import resource
from contextlib import suppress

# Of a hard limit that is none programs make tables, or close every number below it.
ENOUGH = 1 << 17
_AS_STARTED = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """As far as the hard limit allows, as srun does for itself. A login shell's usual 1024 are too few for 1,000 ranks."""
    soft, hard = _AS_STARTED
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # then it stays, and of a large job ranks say that they cannot reach ftrun
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def restore_limit() -> None:
    """In a child, for what hands its limits on to the ranks."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _AS_STARTED)
