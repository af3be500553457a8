"""When a job that is given back shall start again: behind its clean-up, or Slurm adds 121 s, and not much later."""

from __future__ import annotations

from ftslurm.model.settings import Settings

# As long as nobody says. A plain script and its steps are gone within a second (seen on 22.05 to 26.05); below 2 s a node may
# find the credential of the new start revoked.
NO_EPILOG_S, EPILOG_S = 2.0, 8.0
# From requeue.start_in up to eight times of it.
DOUBLED_MAX = 3


def start_in_s(settings: Settings, epilog: bool, slow_requeues: int) -> float:
    """Seconds ahead. epilog: has the site one, or may it have? slow_requeues: that took longer than they should have."""
    usual_s = settings.start_in_s or (EPILOG_S if epilog else NO_EPILOG_S)
    return usual_s * 2.0 ** min(slow_requeues, DOUBLED_MAX)
