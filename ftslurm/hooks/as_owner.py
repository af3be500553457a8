"""Reads the ledger of one job and acts on it, as the owner of the job and for that job alone.

Arguments: the site's file, verb (finish, finish-at-once, grace), job number, job (`123_4` for a task of an array), cluster.
The first was written into the script that starts this, and so was where slurm.conf lies; the others are SlurmUser's, who could
name anything.
Prints one line, or nothing if there is nothing to say.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ftslurm.errors import FtslurmError, UsageError
from ftslurm.hooks.hook_inputs import WATCH_LIMIT_S, read_settings
from ftslurm.ledger.journal import Journal, from_line
from ftslurm.ledger.shared_file import read_untrusted
from ftslurm.ledger.store import ledger_parts
from ftslurm.model.folds.history import History, fold
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.text import visible
from ftslurm.model.values import Value, replace
from ftslurm.policies.start_time import plan_finish
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import JobState, JobView
from ftslurm.system.owner import Owner, owner_of
from ftslurm.wrapper.requeue.finish import finish_open_requeue, is_up_to_date
from ftslurm.wrapper.requeue.requeue import slurms_clock, start_when_clean

POLL_S = 0.2


class Ledger(Value):
    path: Path
    history: History


def own_ledger(settings: HookSettings, owner: Owner, number: int, job: str, cluster: str) -> Ledger | None:
    """The ledger that says itself that it is this job's; None if there is none. Raises: StateError for a trap."""
    for pattern in settings.ledgers:
        base, parts = split_place(pattern, owner)
        data = read_untrusted(base, (*parts, *ledger_parts(cluster, job)), owner.user_id)
        if data is None:
            continue
        history = fold(record for line in data.splitlines() if (record := from_line(line)) is not None)
        run = history.last_run
        if run is not None and (run.number, run.job, run.cluster, run.launcher) == (number, job, cluster, "srun"):
            return Ledger(base.joinpath(*parts, *ledger_parts(cluster, job)), history)
    return None


def split_place(pattern: str, owner: Owner) -> tuple[Path, tuple[str, ...]]:
    """What the site vouches for (the first part that is the user's own), and what the user has made below it."""
    parts = pattern.split("/")
    users = next((number for number, part in enumerate(parts) if "{" in part), len(parts) - 1)
    filled = [part.replace("{home}", str(owner.home)).replace("{user}", owner.name) for part in parts]
    return Path("/".join(filled[: users + 1])), tuple(part for part in filled[users + 1 :] if part)


def may_finish(job: JobView, history: History, user_id: int) -> bool:
    """Is it this user's, waits in the scheduling that the open requeue was to bring about, or the one before, and lacks a part of
    that requeue? A step of the job does not hold it: then only the exclusion shows how far it came."""
    run, decided = history.last_run, history.requeues.open
    return (
        run is not None and decided is not None
        and job.user_id == user_id and job.state is JobState.PENDING
        and (job.held or not job.excluded.issuperset(decided.exclude))
        and is_up_to_date(job.restarts, run.schedule)
    )  # fmt: skip


def finish_at_once(settings: HookSettings, owner: Owner, words: Sequence[str]) -> str:
    """The job has had its time, and nobody is waited for: others are next. Raises: FtslurmError."""
    return finish(replace(settings, finish_after_s=0.0), owner, words, watch_s=0.0)


def finish(settings: HookSettings, owner: Owner, words: Sequence[str], watch_s: float = WATCH_LIMIT_S) -> str:
    """The job itself is given some time first: mostly it is just at it. Raises: FtslurmError.

    Of one that is on its way by a requeue of ours the start is set when its nodes are clean: from inside that is a guess.
    watch_s: for how long that is waited for.
    """
    number, job, cluster = int(words[0]), words[1], words[2]
    began = time.monotonic()
    client: SlurmClient | None = None
    while True:
        found = own_ledger(settings, owner, number, job, cluster)
        if found is None or found.history.requeues.last is None:
            return ""
        client = client or SlurmClient(timeout_s=settings.slurm_timeout_s)
        view = client.job(number)
        decided = found.history.requeues.open
        if decided is None or not may_finish(view, found.history, owner.user_id):
            if watch_s and view.user_id == owner.user_id and view.state is JobState.PENDING and not view.held:
                return start_when_clean(client, number, watch_s, slurms_clock(client.config()))
            return "" if decided is None else f"a requeue is open, but the job is {view.state.value}: left alone"
        if time.monotonic() - began >= settings.finish_after_s:
            return _finish(settings, client, found, number, watch_s)
        time.sleep(POLL_S)


def _finish(settings: HookSettings, client: SlurmClient, found: Ledger, number: int, watch_s: float) -> str:
    start = plan_finish(settings.start_in_s, found.history.clean_ups, watch_s)
    return finish_open_requeue(client, number, Journal(found.path), found.history, start, False, "by EpilogSlurmctld")


def _grace(settings: HookSettings, owner: Owner, words: Sequence[str]) -> str:
    found = own_ledger(settings, owner, int(words[0]), words[1], words[2])
    run = found.history.last_run if found else None
    return f"{run.cleanup_grace_s:g}" if run else ""


def work(config: str = "", verb: str = "", *words: str) -> str:
    """Raises: FtslurmError."""
    do = {"finish": finish, "finish-at-once": finish_at_once, "grace": _grace}.get(verb)
    if do is None or len(words) != 3 or not (words[0].isascii() and words[0].isdecimal() and len(words[0]) < 12):
        raise UsageError("wrong arguments: only EpilogSlurmctld and the Epilog start this", hint="do not start it by hand")
    settings = read_settings(Path(config))
    if os.getuid() < settings.first_user_id:
        raise UsageError(f"user {os.getuid()} is below first_user_id ({settings.first_user_id})", hint="nothing is done for it")
    return do(settings, owner_of(os.getuid()), words)


def main() -> None:
    os.umask(0o077)
    try:
        if said := work(*sys.argv[1:]):
            print(visible(said))
    except FtslurmError as error:
        print(f"not done: {visible(error)}")


if __name__ == "__main__":
    main()
