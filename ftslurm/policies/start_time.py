"""When a job that is given back shall start again: behind its clean-up, or Slurm adds 121 s, and not much later."""

from __future__ import annotations

from ftslurm.model.settings import Settings

# As long as nobody says. A plain script and its steps are gone within a second (seen on 22.05 to 26.05); below 2 s a node may
# find the credential of the new start revoked.
NO_EPILOG_S, EPILOG_S = 2.0, 8.0
# What Slurm adds to a start time that has passed when the clean-up ends: cred_expire (120 s) and 1, slurm.conf(5), AuthInfo.
SLURMS_OWN_S = 121.0
# From requeue.start_in up to eight times of it.
DOUBLED_MAX = 3


def start_in_s(settings: Settings, epilog: bool, slow_requeues: int) -> float:
    """Seconds ahead. epilog: has the site one, or may it have? slow_requeues: that took longer than they should have."""
    usual_s = settings.start_in_s or (EPILOG_S if epilog else NO_EPILOG_S)
    if epilog:
        usual_s = max(usual_s, _behind_grace_s(settings.cleanup_grace_s))
    return usual_s * 2.0 ** min(slow_requeues, DOUBLED_MAX)


def _behind_grace_s(grace_s: float) -> float:
    """For an Epilog that waits for the site's clean-up as long as the job lets it; 0 where that is not to be waited for.

    Most clean-ups are shorter: to start behind a grace longer than Slurm's own delay would cost more than it could save.
    """
    behind_s = grace_s + EPILOG_S
    return behind_s if grace_s > 0 and behind_s < SLURMS_OWN_S else 0.0
