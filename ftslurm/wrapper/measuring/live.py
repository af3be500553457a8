"""ftrun's output for monitoring, while it runs and when it ends: its file for node_exporter, and its trace. A problem here
neither delays nor breaks the job.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from ftslurm.errors import FtslurmError
from ftslurm.launchers.python import own_python
from ftslurm.model.folds.summary import summarise
from ftslurm.model.record import Record
from ftslurm.model.settings.tree import Settings
from ftslurm.system.commands import run_group

# Seconds to send the trace, when the job is over.
TRACE_LIMIT_S = 15.0
# beats, time of the last one (Unix seconds), connected ranks, training step
Numbers = tuple[int, float, int, int]
End = Callable[[bool], None]


def user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except (KeyError, OverflowError):
        return str(user_id)


def measured(
    settings: Settings, job: str, cluster: str, ledger: Path, records: Callable[[], Sequence[Record]],
    numbers: Callable[[], Numbers], say: Callable[[str], None],
) -> End:  # fmt: skip
    """Begin to report. Gives the function to call at the end, with whether the job continues elsewhere."""
    ends: list[End] = []
    if settings.metrics_dir:
        ends += _text_file(settings, job, cluster, records, numbers, say)
    if settings.metrics_otlp:
        ends.append(lambda goes_on: None if goes_on else _trace(ledger, settings.metrics_otlp, say))

    def end(goes_on: bool) -> None:
        for each in ends:
            each(goes_on)

    return end


def _text_file(
    settings: Settings, job: str, cluster: str, records: Callable[[], Sequence[Record]], numbers: Callable[[], Numbers],
    say: Callable[[str], None],
) -> list[End]:  # fmt: skip
    if not find_spec("prometheus_client"):
        say("no metrics are written: metrics.dir needs prometheus-client (pip install 'ftslurm[metrics]')")
        return []
    from ftslurm.wrapper.measuring.textfile import TextFile, file_of

    def text() -> str:
        from ftslurm.report.measures import JobOf, Pulse, measure
        from ftslurm.wrapper.measuring.exposition import text

        seen = tuple(records())
        known = summarise(seen)
        if known is None:
            return ""
        return text([JobOf(user_name(os.getuid()), measure(seen, known, time.time()), Pulse(*numbers()))], with_totals=False)

    path = file_of(Path(settings.metrics_dir), os.getuid(), cluster, job)
    file = TextFile(path, text, say, settings.metrics_every_s, settings.metrics_keep_s)
    return [lambda goes_on: file.end(remove=goes_on)]


def _trace(ledger: Path, endpoint: str, say: Callable[[str], None]) -> None:
    """Send the trace from a process of its own, which is stopped if it takes too long."""
    python = own_python()
    try:
        done = run_group(python.module_argv("ftslurm.wrapper.measuring.traces", str(ledger), endpoint), TRACE_LIMIT_S, os.environ)
    except FtslurmError as error:
        return say(str(error))
    if done.timed_out:
        say(f"the trace was not sent within {TRACE_LIMIT_S:g} s; `ftslurm metrics --otlp` sends it later")
    elif said := done.stdout.strip().splitlines():
        say(said[-1][:300])
    elif done.status:
        say(f"the trace was not sent: status {done.status}")
