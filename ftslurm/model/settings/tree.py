"""The settings tree: every value that can be set, its unit, range and default, and where it came from.

One table serves the policy file, FTRUN_* variables, `--ft-set` and `ftslurm explain`. Later layers win:
default, profile, site policy, job policy, annotations, environment, command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.rungs import RUNG_NAMES, Rung
from ftslurm.model.settings.streams import local_ranks, streams
from ftslurm.model.values import dataclass

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LARGE_FIRST = (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0))
_SIGNALS = ("TERM", "USR1", "USR2", "HUP", "INT", "QUIT", "CONT", "URG", "XCPU")


# The kernel's own kill comes one second after the end of a lease (GUARD_S in shim/timers.py).
LEAST_MARGIN_S = 2.0
# Beats in the time after which a node counts as silent, and in that of a lease: one may be lost.
BEATS = 3


# --- kinds of values: text or a YAML scalar in, a value out, ValueError with the reason otherwise

# What a kind takes, for people.
_TAKES: dict[Callable[[Any], Any], str] = {}


def takes(kind: Callable[[Any], Any]) -> str:
    """What one writes for a value of this kind, with its unit: `a duration, such as 20s, 5m, 24h or 2d`."""
    return _TAKES.get(kind, "text")


def how_to_correct(kind: Callable[[Any], Any]) -> str:
    """The hint for a value that `kind` refuses."""
    return f"write {_TAKES[kind]}" if kind in _TAKES else "correct the value there"


def value_of(kind: Callable[[Any], Any], raw: Any, where: str, hint: str = "") -> Any:
    """`raw` as `kind` has it. where: place and name. hint: instead of what the kind takes.

    Raises: PolicyError that begins with `where`, when `kind` refuses it.
    """
    try:
        return kind(raw)
    except (ValueError, TypeError, OverflowError) as error:
        raise PolicyError(f"{where}: {error}", hint=hint or how_to_correct(kind)) from None


def duration(value: Any) -> float:
    """`20s`, `1.5h`, `never` (0) -> seconds. A number without a unit is refused: Slurm's own options mean minutes."""
    text = str(value).strip()
    if text in ("never", "0"):
        return 0.0
    number = text.rstrip("mshd")
    unit = text[len(number) :]
    if unit not in _UNITS:
        raise ValueError(f"`{text}` is not a duration")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        raise ValueError(f"`{text}` is not a duration") from None
    if not 0 <= seconds < 1e9:
        raise ValueError(f"`{text}` is out of range for a duration")
    return seconds


def lasting(value: Any) -> float:
    """A duration that cannot be `never`: it would be taken for at once."""
    if str(value).strip() == "never":
        raise ValueError("`never` is not allowed here; a long time, such as 30d, is")
    return duration(value)


def lasting_or_auto(value: Any) -> float:
    """A duration above nothing; 0 for auto."""
    if str(value).strip() == "auto":
        return 0.0
    if not (seconds := lasting(value)):
        raise ValueError(f"`{value}` is not a duration above 0")
    return seconds


def lead(value: Any) -> float:
    """A duration above nothing; 0 for auto, -1 for off."""
    return -1.0 if str(value).strip().lower() in ("off", "false", "no") else lasting_or_auto(value)


def grace(value: Any) -> float:
    """A duration, or -1 for as long as it takes."""
    return -1.0 if str(value).strip() == "-1" else lasting(value)


def switch(value: Any) -> bool:
    words = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    try:
        return words[str(value).strip().lower()]
    except KeyError:
        raise ValueError(f"`{value}` is neither true nor false") from None


def switch_or_auto(value: Any) -> bool | None:
    """None: auto."""
    if value is None or str(value).strip().lower() == "auto":
        return None
    try:
        return switch(value)
    except ValueError:
        raise ValueError(f"`{value}` is none of true, false and auto") from None


def count(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            number = int(str(value).strip())
        except ValueError:
            raise ValueError(f"`{str(value)[:60]}` is not a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"{number} is out of range: {low} to {high}")
        return number

    _TAKES[parse] = f"a whole number, {low} to {high}"
    return parse


def choice(*words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        text = str(value).strip()
        if text not in words:
            raise ValueError(f"`{text}` is not one of {', '.join(words)}{suggestion(text, words)}")
        return text

    _TAKES[parse] = f"one of {', '.join(words)}"
    return parse


def words_of(*known: str) -> Callable[[Any], tuple[str, ...]]:
    """A list, or text with commas, of words from `known` (any word if none is given)."""

    def parse(value: Any) -> tuple[str, ...]:
        items = value if isinstance(value, (list, tuple)) else str(value).split(",")
        words = tuple(str(item).strip() for item in items if str(item).strip())
        for word in words:
            if known and word not in known:
                raise ValueError(f"`{word}` is not one of {', '.join(known)}{suggestion(word, known)}")
        return words

    _TAKES[parse] = f"a list with commas, of {', '.join(known)}" if known else "a list with commas"
    return parse


def share(value: Any) -> float:
    """From 0 to 1, or -1 for never asked."""
    try:
        number = float(str(value).strip())
    except ValueError:
        raise ValueError(f"`{value}` is not a number") from None
    if number != -1 and not 0 <= number <= 1:
        raise ValueError(f"{number:g} is out of range: 0 to 1, or -1 to switch it off")
    return number


# AIMaster's words (AIMaster, fault tolerance monitoring), and ft_launcher's, of which one says the same; the value is ours.
_MODES = {
    "sync": "sync", "any-failed": "sync", "async": "async", "min-healthy": "min-healthy", "independent": "independent",
}  # fmt: skip
# In which a rank that fails may start again alone.
ALONE = frozenset({"async", "independent"})


def mode(value: Any) -> str:
    """`sync`: a rank that fails ends the attempt of all. `async`: ranks are independent of each other. `min-healthy`: the ranks
    of a node where one fails end, and the attempt of all ends when fewer than nodes.min_healthy are left without.
    `independent`: a rank that fails ends no other, as with srun --kill-on-bad-exit=0.
    """
    text = str(value).strip()
    if text.lower() not in _MODES:
        known = ("sync", "async", "any-failed", "min-healthy", "independent")
        raise ValueError(f"`{text}` is not one of {', '.join(known)}{suggestion(text.lower(), known)}")
    return _MODES[text.lower()]


def text(value: Any) -> str:
    return str(value)


def secret_file(value: Any) -> str:
    """A path. What is secret stands in the file, and never here: this is printed, and kept in ledgers."""
    path = str(value).strip()
    if "://" in path:
        raise ValueError("the path of a file is wanted; the address goes into the file (mode 0600)")
    return path


def port_range(value: Any) -> tuple[int, int] | None:
    """`60000-60100` -> both ends, both included; empty, or 0-0 as Slurm writes it: None."""
    raw = str(value).strip()
    if raw in ("", "0-0"):
        return None
    low, dash, high = raw.partition("-")
    if not (dash and low.isascii() and low.isdecimal() and high.isascii() and high.isdecimal()):
        raise ValueError(f"`{raw}` is not a port range")
    if not 1024 <= int(low) <= int(high) <= 65535:
        raise ValueError(f"`{raw}` is not a port range between 1024 and 65535")
    return int(low), int(high)


def table(value: Any) -> str:
    """A mapping, or JSON of one, as JSON."""
    import json

    try:
        tree = json.loads(value) if isinstance(value, str) and value else value or {}
        if not isinstance(tree, Mapping):
            raise ValueError
        return json.dumps(dict(tree), separators=(",", ":")) if tree else ""
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"`{str(value)[:60]}` is not a mapping of names to values") from None


_TAKES |= {
    streams: "0 to 3, or by local rank, such as 0:3,1:2",
    local_ranks: "numbers of local ranks with commas",
    duration: "a duration, such as 20s, 5m, 24h or 2d, or never",
    lasting: "a duration, such as 20s, 5m, 24h or 2d",
    lasting_or_auto: "a duration, such as 20s, 5m, 24h or 2d, or auto",
    lead: "a duration, such as 20s, 5m, 24h or 2d, or auto, or off",
    grace: "a duration, such as 20s, 5m, 24h or 2d, or -1",
    switch: "true or false",
    switch_or_auto: "true, false or auto",
    share: "a number from 0 to 1, or -1",
    mode: "one of sync, any-failed (the same), async, min-healthy, independent",
    secret_file: "the path of a file",
    port_range: "two numbers from 1024 to 65535, such as 60000-60100",
    table: "a mapping of names to values, or JSON of one",
}


def suggestion(word: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def leaf(name: str, kind: Callable[[Any], Any], default: Any, what: str) -> Any:
    """A field of a table of settings. kind: checks a value and converts it; raises ValueError. what: the help."""
    metadata = {"name": name, "kind": kind, "what": what}
    return field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every value in force. Durations in seconds; 0 for `never` where a duration may be that."""

    ladder: tuple[str, ...] = leaf(
        "ladder", words_of(*RUNG_NAMES), RUNG_NAMES, "order in which the rungs are tried; a rung that is not named is never used"
    )
    answers: bool = leaf(
        "answers", switch, True,
        "return the status of a failed step, without a remedy, where the script that called ftrun looks at it and goes on"
        " (`if ftrun ...`, `ftrun ... || true`); faults of devices and nodes have their remedies all the same",
    )  # fmt: skip
    tips: bool = leaf(
        "tips", switch, True,
        "print once in a job, after a minute of its first attempt, the commands that show it and the rungs that it cannot use,"
        " and after a restart whether its training began again at its first step",
    )  # fmt: skip
    plain: bool = leaf("plain", switch, False, "supervise the step and start nothing again, whatever fails")
    mode: str = leaf(
        "mode", mode, "sync",
        "what the exit of one rank means. sync: all ranks start again; async: only that rank does;"
        " min-healthy: nodes without an exited rank continue (nodes.min_healthy); independent: crash_restarts limits its"
        " restarts, and the others run to their own end, which srun --kill-on-bad-exit=0 asks for",
    )  # fmt: skip
    rank_restarts_in_a_row: int = leaf(
        "rungs.rank-restart.in_a_row", count(1, 100_000), 20,
        "restarts of a single rank, each soon after the previous one, before all ranks are stopped and the next rung is tried",
    )  # fmt: skip
    max_restarts: int = leaf(
        "max_restarts",
        count(0, 128),
        8,
        "requeues that a job may use, isolated and unconditional ones together",
    )
    max_restarts_for: str = leaf(
        "max_restarts_for", choice("requeues", "all"), "requeues",
        "what max_restarts counts. requeues: requeues only; all: every restart of the job, also in place and after a hang (as"
        " ft_launcher's --max-restarts does)",
    )  # fmt: skip

    max_job_restarts: int = leaf(
        "max_job_restarts", count(-1, 1000), -1,
        "restarts of the whole job, in place, after hangs and by requeue counted together (-1 = no common limit, each rung"
        " has its own)",
    )  # fmt: skip

    in_place: bool = leaf(
        "rungs.in-place-restart.enabled",
        switch,
        True,
        "restart the ranks on the same nodes after a device fault that can heal",
    )
    same_code_limit: int = leaf(
        "rungs.in-place-restart.same_code_limit",
        count(1, 1000),
        3,
        "occurrences of the same fault code on the same device, within same_code_window, after which the node is excluded and"
        " not restarted in place",
    )
    same_code_window_s: float = leaf(
        "rungs.in-place-restart.same_code_window", lasting, 86400.0, "time over which same_code_limit counts"
    )
    self_heal_wait_s: float = leaf(
        "rungs.in-place-restart.self_heal_wait", lasting, 15.0, "how long to wait for a device to recover by itself"
    )
    reset: str = leaf(
        "rungs.in-place-restart.reset",
        choice("auto", "never"),
        "auto",
        "auto: reset devices that do not recover by themselves, where that is permitted; never: do not reset",
    )
    reset_wait_s: float = leaf("rungs.in-place-restart.reset_wait", lasting, 180.0, "how long the reset of a device may take")
    crash_restarts: int = leaf(
        "rungs.in-place-restart.crash_restarts",
        count(0, 1000),
        1,
        "crashes of the program in a row, without progress between, that are answered by a restart in place before a requeue is"
        " tried",
    )
    crash_restarts_total: int = leaf(
        "rungs.in-place-restart.crash_restarts_total",
        count(0, 1000),
        20,
        "crashes that one command may have answered in place in the whole job, whatever progress it makes between them",
    )
    hang_restart: bool | None = leaf(
        "rungs.hang-restart.enabled",
        switch_or_auto,
        None,
        "restart the ranks on the same nodes when the job hangs and no node is to blame. auto: if a rank is named by its"
        " collectives, heartbeats, sections or MPI calls, does no work, and the job has made progress"
        " before; otherwise only report the hang",
    )
    hang_restart_asked: bool = leaf(
        "rungs.hang-restart.by_program", switch, True,
        "switch hang-restart on as soon as the program sets a time limit of its own (calculated timeouts, a staged interval);"
        " off if enabled: false was requested",
    )  # fmt: skip
    hangs_in_a_row: int = leaf(
        "rungs.hang-restart.in_a_row",
        count(1, 128),
        3,
        "consecutive hang restarts allowed before a hang fails the job",
    )
    node_replacement: bool = leaf(
        "rungs.node-replacement.enabled",
        switch,
        False,
        "replace a bad node by a spare or a borrowed node and keep the allocation",
    )
    node_replacements: int = leaf(
        "rungs.node-replacement.budget", count(0, 128), 0, "nodes that one job may replace or, for shrink, lose"
    )
    shrink: bool = leaf(
        "rungs.shrink.enabled",
        switch,
        False,
        "continue with fewer nodes if no replacement is available; nodes.min is the smallest number",
    )
    isolated_requeue: bool = leaf("rungs.isolated-requeue.enabled", switch, True, "requeue the job with the bad nodes excluded")
    unconditional_requeue: bool = leaf(
        "rungs.unconditional-requeue.enabled",
        switch,
        True,
        "requeue the job when the program failed and no device or node explains the failure",
    )
    unconditional_in_a_row: int = leaf(
        "rungs.unconditional-requeue.in_a_row",
        count(1, 128),
        3,
        "consecutive unconditional requeues, without progress and without a device or node fault in between, before the job"
        " fails",
    )

    retry_policy: str = leaf(
        "retry.policy",
        choice("Evidence", "ExitCodeAndErrorMsg", "OnFailure", "Never"),
        "Evidence",
        "which failures are retried. Evidence: all but hopeless ones; ExitCodeAndErrorMsg: those that exit status or output"
        " calls retriable; OnFailure: all; Never: none",
    )
    same_error: int = leaf(
        "retry.same_error",
        count(0, 100000),
        0,
        "failures of one rank with the same error that are tolerated (0 = unlimited)",
    )
    failure_rate: float = leaf(
        "retry.failure_rate", share, -1.0, "share of the ranks that may fail before the job fails (-1 = unlimited)"
    )
    keywords: tuple[str, ...] = leaf(
        "retry.keywords",
        words_of(),
        (),
        "words that mark an error as retriable when they occur in the last output of a failed rank",
    )

    hang_detection: bool = leaf(
        "hang.detection",
        switch,
        True,
        "report a hang when no process of the job does I/O and the use of its devices (or CPUs) does not change",
    )
    hang_detect_s: float = leaf(
        "hang.detect_time",
        lasting,
        1800.0,
        "time without process I/O on all nodes after which the use of devices is sampled (MA_HANG_DETECT_TIME, there in minutes)",
    )
    hang_sample_s: float = leaf(
        "hang.sample_time",
        lasting,
        60.0,
        "how long the use of devices or CPUs is sampled before a hang is reported",
    )
    hang_silence: bool = leaf(
        "hang.log_silence",
        switch,
        False,
        "report a hang when no rank has printed anything for hang.interval",
    )
    hang_interval_s: float = leaf(
        "hang.interval",
        lasting,
        1800.0,
        "time without output of any rank that counts as a hang (with hang.log_silence)",
    )
    hang_exit: bool = leaf(
        "hang.exit_detection",
        switch,
        False,
        "report a hang when some ranks have exited and the others do not exit within hang.exit_interval",
    )
    hang_exit_s: float = leaf(
        "hang.exit_interval",
        lasting,
        600.0,
        "longest time between the first and the last exit of a rank (with hang.exit_detection)",
    )
    watch: str = leaf(
        "hang.watch",
        choice("L0", "L1", "L2"),
        "L1",
        "probe inside Python ranks that tells which rank the others wait for. L0: none; L1: collectives; L2: also"
        " point-to-point operations and slow links (2 us a wait)",
    )
    ft_config: str = leaf(
        "fault_tolerance", table, "", "ft_launcher's configuration, as its YAML file has it: timeouts for heartbeats and sections"
    )
    provide: tuple[str, ...] = leaf(
        "sdk.provide",
        words_of("nvrx", "aimaster"),
        (),
        "packages that ftslurm's own implementation replaces in the ranks, even where they are installed",
    )
    inject: bool = leaf(
        "sdk.inject",
        switch,
        True,
        "add the program interface (ftslurm.sdk) to PYTHONPATH of the ranks, so that it need not be installed",
    )
    warm: bool = leaf(
        "warm.restart",
        switch,
        False,
        "keep a spare process beside each Python rank that has imported numpy and torch, for a restart without these imports",
    )
    warm_after_s: float = leaf(
        "warm.after", lasting, 30.0, "time from a rank's last import of them to the start of its spare (with warm.restart)"
    )
    warm_memory_mb: int = leaf(
        "warm.memory",
        count(1, 1_000_000),
        1024,
        "megabytes of memory that a spare may take beside its rank, else there is none (with warm.restart)",
    )
    hang_evidence_s: float = leaf(
        "hang.evidence_time",
        lasting,
        10.0,
        "how long to collect evidence from a hung rank before it is stopped",
    )
    hang_c4d: bool = leaf(
        "hang.c4d", switch, True, "watch the collectives of the ranks to see whether the job is stalled, and which rank stalls it"
    )
    hang_c4d_level: str = leaf(
        "hang.c4d_level",
        choice("Info", "Warning", "Error"),
        "Warning",
        "least severity of a finding about collectives that is printed; the history has all of them",
    )
    hang_c4d_timeout_s: float = leaf(
        "hang.c4d_timeout",
        lasting,
        10.0,
        "time without a finished collective after which the stalled rank is looked for (C4D_HANG_TIMEOUT, there in seconds)",
    )
    hang_c4d_times: int = leaf(
        "hang.c4d_times",
        count(1, 100_000),
        18,
        "after this many hang.c4d_timeout inside one collective, report an Error (C4D_HANG_TIMES)",
    )
    hang_stall_s: float = leaf(
        "hang.stall",
        lasting,
        180.0,
        "time without a finished collective after which a stalled job counts as hung; longer if the job has made longer"
        " pauses before",
    )
    hang_work_s: float = leaf(
        "hang.stall_at_work",
        lasting,
        1800.0,
        "the same as hang.stall, while the ranks that are waited for still do work; shorter once the job's pauses are known",
    )
    hang_start_s: float = leaf(
        "hang.start",
        lasting,
        600.0,
        "longest wait for the first collective, from the moment the last of the waiting ranks arrived",
    )
    hang_compare_s: float = leaf(
        "hang.compare",
        lasting,
        60.0,
        "interval between two searches for ranks that are slower than the others (0s = never)",
    )

    stop_grace_s: float = leaf(
        # Below Slurm's KillWait (30 s unless the site changed it), so that ranks can end by themselves under both.
        "stop.grace",
        lasting,
        20.0,
        "time from SIGTERM to SIGKILL when ranks are stopped",
    )
    after_signal_s: float = leaf(
        "stop.after_signal", lasting_or_auto, 0.0,
        "time from SIGTERM, SIGINT, SIGHUP or SIGQUIT to ftrun until SIGKILL to the ranks. auto: stop.grace after a SIGTERM"
        " without Slurm, else until they exit",
    )  # fmt: skip
    signal_delay_s: float = leaf(
        "stop.signal_delay",
        lasting,
        0.0,
        "time to wait before such a signal is passed on to ranks that have not received it (as torchrun's --monitor-interval)",
    )
    kill_wait_s: float = leaf("stop.kill_wait", lasting, 30.0, "time from SIGKILL until a process counts as unkillable")

    start_in_s: float = leaf(
        # Slurm adds 121 s if the start time has passed before the clean-up ends.
        "requeue.start_in",
        lasting_or_auto,
        0.0,
        "time from a requeue to the earliest start of the job; longer if earlier clean-ups took longer."
        " auto: when the clean-up is expected to have ended",
    )
    cleanup: tuple[str, ...] = leaf(
        "requeue.cleanup",
        words_of(),
        (),
        "the job's own clean-up: a program and its arguments, run once on each node before a requeue",
    )
    cleanup_grace_s: float = leaf(
        "requeue.cleanup_grace",
        grace,
        -1.0,
        "time to wait for the clean-up before it continues in the background (-1 = until it ends;"
        " MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS)",
    )
    even_if_no_requeue: bool = leaf(
        "requeue.even_if_no_requeue", switch, False, "requeue a job even if it was submitted with --no-requeue"
    )
    isolation_expires_s: float = leaf(
        "isolation.expires",
        duration,
        0.0,
        "how long a node stays excluded from the job (0s = for the job's whole life)",
    )
    memory_s: float = leaf(
        "isolation.memory",
        duration,
        7 * 86400.0,
        "how long later jobs remember nodes that were excluded because of a fault (0s = not at all)",
    )
    memory_jobs: int = leaf(
        "isolation.memory_jobs",
        count(1, 1000),
        2,
        "number of jobs that must have excluded a node after a proven fault before it is suspect",
    )
    blame_on_words: int = leaf(
        "blame.on_words",
        count(0, 128),
        1,
        "nodes that one job may exclude because of what ranks printed, unless a device, Slurm or a health check confirms it"
        " (0 = none)",
    )

    warning_signals: tuple[str, ...] = leaf(
        "warning.signals",
        words_of(*_SIGNALS),
        ("TERM",),
        "signals by which Slurm warns of a time limit or a preemption (sbatch --signal)",
    )
    warning_requeue: bool = leaf("warning.requeue", switch, False, "requeue the job after such a warning; no budget is spent")
    warning_grace_s: float = leaf(
        "warning.grace",
        lasting,
        60.0,
        "time that the ranks have after the warning to write a checkpoint and exit",
    )

    resume_at_limit_s: float = leaf(
        "time_limit.resume",
        lead,
        -1.0,
        "requeue the job before its time limit ends it: this long before, the ranks get the first of warning.signals, and have"
        " until shortly before the limit to save and exit; no budget is spent. auto: what a checkpoint was seen to take, else 2m",
    )
    resumes_at_limit: int = leaf(
        "time_limit.resumes", count(1, 100_000), 100, "requeues of one job by time_limit.resume, after which its limit ends it"
    )

    preemption_requeue: bool = leaf(
        "preemption.requeue", switch, True,
        "requeue a job whose ranks end within the grace of a preemption, if Slurm would requeue it too; no budget is spent",
    )  # fmt: skip

    checkpoint_files: str = leaf(
        "checkpoint.files", text, "",
        "pattern of the files that a checkpoint creates or changes, as seen on ftrun's node (for `ftslurm control`)",
    )  # fmt: skip
    checkpoint_settle_s: float = leaf(
        "checkpoint.settle", lasting, 5.0, "a checkpoint counts as complete when its files have not changed for this time"
    )

    progress_file: str = leaf(
        "progress.file", text, "",
        "file with the number of the last iteration that a checkpoint holds; it shows whether restarts make progress",
    )  # fmt: skip
    progress_least: int = leaf(
        "progress.iterations", count(0, 1_000_000_000), 1, "iterations by which progress.file must grow in an attempt"
    )
    progress_attempts: int = leaf(
        "progress.attempts",
        count(0, 1_000_000),
        3,
        "consecutive attempts without that growth after which the job fails (0 = no limit)",
    )
    no_restart_status: int = leaf(
        "no_restart_status", count(0, 255), 0,
        "exit status where ftslurm finds that no restart can help: no progress, or a hopeless error (0 = that of the program)",
    )  # fmt: skip

    lease_s: float = leaf(
        "lease.time",
        lasting,
        60.0,
        "a node that is cut off stops its own ranks after this time; must be well above nodes.silence",
    )
    lease_margin_s: float = leaf(
        # The shim kills at the end of the lease, the kernel one second later; the rest is for clocks that differ.
        "lease.margin",
        lasting,
        5.0,
        "time from the end of a lease until its ranks may start elsewhere",
    )
    silence_s: float = leaf(
        "nodes.silence",
        lasting,
        15.0,
        "time without a message from a node after which Slurm and the node's slurmd are asked about it",
    )
    probe_s: float = leaf("nodes.probe_timeout", lasting, 5.0, "how long the slurmd of a silent node may take to answer")
    spares: int = leaf(
        "nodes.spares",
        count(0, 4096),
        0,
        "nodes of the allocation that the step leaves free to replace bad ones",
    )
    donor: bool = leaf("nodes.donor", switch, True, "when no spare is left, borrow a node by a small job that ftrun submits")
    donor_options: tuple[str, ...] = leaf(
        "nodes.donor_options", words_of(), (), "further sbatch options of that job, such as --constraint=a100"
    )
    replacement_wait_s: float = leaf(
        "nodes.replacement_wait",
        lasting,
        300.0,
        "how long to wait for a replacement node before the next rung is tried",
    )
    health_command: tuple[str, ...] = leaf(
        "nodes.health_command",
        words_of(),
        (),
        "program and arguments that exit with status 0 on a node that may run ranks; run before ranks start there",
    )
    straggler_wait_s: float = leaf(
        # Images are loaded at different speeds; but srun waits for ever where a node cannot even start our program.
        "nodes.straggler_wait",
        lasting,
        600.0,
        "while a step starts: longest wait for its next task, before the node is checked and the step is ended (0s = no limit)",
    )
    address: str = leaf(
        "nodes.address", text, "",
        "where the other nodes reach ftrun: an address, a network (10.1.0.0/16) or an interface (ib0). Empty: by the address"
        " that Slurm uses",
    )  # fmt: skip
    ports: tuple[int, int] | None = leaf(
        "nodes.ports",
        port_range,
        None,
        "ports on which ftrun may listen, such as 60000-60100. Empty: SrunPortRange if the site sets it, else any port",
    )
    secret: str = leaf(
        "nodes.secret", choice("auto", "munge", "file", "environment"), "auto",
        "how the ranks and agents receive the secret of the run. auto: munge where Slurm uses it, else environment;"
        " steps in containers: file or environment",
    )  # fmt: skip
    check_s: float = leaf("nodes.check_timeout", lasting, 30.0, "how long the check of a node before ranks start there may take")
    min_healthy: int = leaf(
        "nodes.min_healthy",
        count(0, 65536),
        0,
        "for mode min-healthy: smallest number of nodes without an exited rank (0 = all nodes)",
    )
    min_nodes: int = leaf(
        "nodes.min",
        count(0, 65536),
        0,
        "smallest number of nodes that the job can run on (for shrink; 0 = all nodes)",
    )

    poll_s: float = leaf("devices.poll", lasting, 10.0, "interval between two checks of a node's devices")
    answer_wait_s: float = leaf(
        "devices.answer_wait",
        lasting,
        5.0,
        "how long to wait for the state of the devices after a rank has failed",
    )
    user_induced: tuple[str, ...] = leaf(
        "devices.user_induced",
        words_of(),
        (),
        "fault codes that the program causes itself, in addition to those of the catalogue",
    )

    catalogs: tuple[str, ...] = leaf(
        "catalogs", words_of(), (), "the site's own files of codes and patterns, which override the shipped ones"
    )
    keep_bytes: int = leaf(
        "logs.keep_bytes",
        count(0, 1 << 32),
        16 << 20,
        "bytes of each output file of the batch script that are saved at a requeue, which may truncate the file (0 = none)",
    )
    tail_bytes: int = leaf(
        "logs.tail_bytes",
        count(0, 1 << 20),
        65536,
        "bytes of each output stream of a rank that are kept to explain a failure (0 = none); 64 MB of all ranks together",
    )
    log_folder: str = leaf(
        "logs.folder", text, "",
        "folder for files of the ranks, by attempt: FOLDER/attempt_0/LOCAL_RANK/stdout.log; %n in it is the slot of the node",
    )  # fmt: skip
    redirects: str = leaf(
        "logs.redirects", streams, "0", "streams that go into logs.folder: 1 stdout, 2 stderr, 3 both; by local rank: 0:3,1:2"
    )
    tee: str = leaf("logs.tee", streams, "0", "the same, for streams that are also printed")
    line_prefix: str = leaf(
        "logs.line_prefix", text, "[${role_name}${local_rank}]:", "text before each line that logs.tee prints; ${rank} works, too"
    )
    console_ranks: tuple[int, ...] = leaf(
        "logs.local_ranks", local_ranks, (), "local ranks whose output is printed (empty = all); files are written for all"
    )
    cycle_files: str = leaf(
        "logs.cycle_files", text, "",
        "file for the output of all ranks, one per attempt, lines begin with the rank: /a/x.log makes /a/x_cycle0.log",
    )  # fmt: skip

    notify_file: str = leaf(
        "notify.file", secret_file, "auto",
        "file with the addresses of the people to notify, mode 0600. auto: notify.yaml in the state folder; none: notify nobody",
    )  # fmt: skip
    notify_failure: tuple[str, ...] = leaf("notify.failure", words_of(), ("all",), "who is notified when the job has failed")
    notify_requeue: tuple[str, ...] = leaf("notify.requeue", words_of(), ("all",), "who is notified of a requeue")
    notify_replacement: tuple[str, ...] = leaf(
        "notify.replacement", words_of(), ("all",), "who is notified when a node is replaced or excluded"
    )
    notify_restart: tuple[str, ...] = leaf(
        "notify.restart", words_of(), ("digest",),
        "who is notified of a restart on the same nodes. digest: all, or those named beside it, by one summary in an hour;"
        " any of these settings takes it",
    )  # fmt: skip
    notify_wait: tuple[str, ...] = leaf(
        "notify.wait", words_of(), ("all",), "who is notified when the job waits for minutes, or until somebody acts"
    )
    notify_hang: tuple[str, ...] = leaf(
        "notify.hang",
        words_of(),
        ("all",),
        "who is notified of a hang that is not answered by a restart",
    )
    notify_message: tuple[str, ...] = leaf("notify.message", words_of(), ("all",), "who receives the program's own messages")
    notify_end: tuple[str, ...] = leaf("notify.end", words_of(), ("none",), "who is notified when the job has succeeded")
    notify_burst: int = leaf(
        "notify.burst",
        count(1, 1000),
        6,
        "messages that one address receives within notify.window; further ones are combined into one summary",
    )
    notify_window_s: float = leaf("notify.window", lasting, 600.0, "time over which notify.burst counts")
    notify_end_wait_s: float = leaf(
        "notify.end_wait",
        lasting,
        10.0,
        "how long the end of the job may be delayed to send the last notices",
    )

    metrics_dir: str = leaf(
        "metrics.dir",
        text,
        "",
        "folder that node_exporter's textfile collector reads; ftrun writes one file for each job. Empty: no metrics",
    )
    metrics_every_s: float = leaf("metrics.every", lasting, 15.0, "interval between two updates of that file")
    metrics_keep_s: float = leaf(
        "metrics.keep", lasting, 3600.0, "time after the end of a job after which a later job on that node may remove its file"
    )
    metrics_otlp: str = leaf(
        "metrics.otlp", text, "",
        "OpenTelemetry endpoint for traces, such as http://collector:4318/v1/traces; the attempts of the job are sent when it"
        " ends. Empty: no traces",
    )  # fmt: skip

    slurm_bin: str = leaf("slurm.bin", text, "", "folder of Slurm's commands (srun, scontrol, ...). Empty: searched on PATH")
    slurm_comment: bool = leaf(
        "slurm.comment",
        switch,
        True,
        "show in the job's comment what ftrun waits for, if the job has no comment of its own",
    )
    slurm_timeout_s: float = leaf("slurm.timeout", lasting, 60.0, "how long slurmctld may take to answer")
    slurm_patience_s: float = leaf(
        "slurm.patience",
        duration,
        4 * 3600.0,
        "how long to wait for a slurmctld that is away before ftrun decides without it (0s = not at all)",
    )

    launcher: str = leaf(
        "launcher",
        choice("auto", "srun", "local"),
        "auto",
        "what starts the ranks. srun: Slurm; local: processes of this machine; auto: srun, or local where there is no Slurm",
    )
    local_nodes: int = leaf(
        "local_nodes", count(0, 4096), 0, "nodes that the local launcher simulates (0 = the number that -N names)"
    )
    restart_via: str = leaf(
        "restart_via",
        choice("shim", "step"),
        "shim",
        "how ranks start again. shim: in the running step; step: by a new srun, which MPI and PMIx programs need",
    )
    rendezvous: str = leaf(
        "rendezvous",
        choice("none", "torch"),
        "none",
        "torch: set MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE and the like in each rank; none: do not",
    )
    python: str = leaf(
        "python",
        text,
        "",
        "Python interpreter for shims and agents on the nodes. Empty: the one that runs ftrun, and in containers of pyxis a copy"
        " of it, which ftrun mounts. bundle: that copy everywhere, for nodes whose own Python is older than 3.10. Where another"
        " one is named, containers have to mount it",
    )

    @property
    def goes_on_after_warning(self) -> bool:
        """Does a warning of Slurm's, or ours before the time limit, end in a requeue?"""
        return self.warning_requeue or self.resumes_itself

    @property
    def resumes_itself(self) -> bool:
        """Is the job to be requeued before its time limit ends it?"""
        return self.resume_at_limit_s >= 0


LEAVES: Mapping[str, Any] = {leaf.metadata["name"]: leaf for leaf in fields(Settings)}


def is_on(settings: Settings, rung: str) -> bool:
    """Is the rung switched on, at least for some cases (auto)? `fail` always is."""
    if rung == Rung.RANK_RESTART:
        return settings.mode in ALONE
    leaf = LEAVES.get(f"rungs.{rung}.enabled")
    return leaf is None or getattr(settings, leaf.name) in (True, None)


def most_crash_restarts(settings: Settings) -> int:
    """Crashes of one command that may be answered in place in the whole job."""
    most = max(settings.crash_restarts, settings.crash_restarts_total) if settings.crash_restarts else 0
    return most if settings.max_job_restarts < 0 else min(most, settings.max_job_restarts)


def in_words(leaf: Any, value: Any) -> str:
    """A value as one would write it in a policy."""
    if value is None and leaf.metadata["kind"] is switch_or_auto:
        return "auto"
    if value == -1 and leaf.metadata["kind"] is grace:
        return "-1"
    if value == -1 and leaf.metadata["kind"] is lead:
        return "off"
    if value == 0 and leaf.metadata["kind"] in (lasting_or_auto, lead):
        return "auto"
    if leaf.metadata["kind"] in (duration, lasting, lasting_or_auto, lead, grace):
        return next((f"{value / size:g}{unit}" for unit, size in _LARGE_FIRST if value and value % size == 0), f"{value:g}s")
    if isinstance(value, bool):
        return "true" if value else "false"
    if leaf.metadata["kind"] is port_range:
        return "-".join(map(str, value)) if value else "(empty)"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value != "" else "(empty)"


@dataclass(frozen=True, slots=True)
class Layer:
    """Some values and where they stand. values: leaf name -> raw value; places: leaf name -> `policy.yaml, line 4`."""

    values: Mapping[str, Any]
    places: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings in force, and for each leaf the place its value came from."""

    settings: Settings
    places: Mapping[str, str]


def resolve(layers: Iterable[Layer]) -> Resolved:
    """Lay the layers on the defaults, later ones on top. Raises: PolicyError naming the place and the mend."""
    values: dict[str, Any] = {}
    places = dict.fromkeys(LEAVES, "default")
    for layer in layers:
        for name, raw in layer.values.items():
            place = layer.places.get(name, "?")
            leaf = known_leaf(name, place)
            values[leaf.name] = parse_leaf(name, raw, place)
            places[name] = place
    settings = _implied(Settings(**values), places)
    _check_lease(settings, places)
    return Resolved(settings, places)


# Who asks for the means wants the rung, and who asks for the rung wants some of the means: where nobody has said how much.
_SHRINKS = 8
_REPLACEMENTS = 3  # as in the example of ModelArts' pod-retry-num
_SHRUNK_LEAST = 1  # one node is the least that is a job
# Number -> the switch without which it would mean nothing, where that is off by default.
_SWITCHED_ON_BY = {
    "rungs.hang-restart.in_a_row": "rungs.hang-restart.enabled",
    "rungs.node-replacement.budget": "rungs.node-replacement.enabled",
    "hang.interval": "hang.log_silence",
    "hang.exit_interval": "hang.exit_detection",
}


def _implied(settings: Settings, places: dict[str, str]) -> Settings:
    """Spare nodes switch node-replacement on, nodes.min shrink, and a timeout for heartbeats or sections hang-restart. Of a
    switch and its number each implies the other; a number of 0 switches off.
    """
    changes: dict[str, Any] = {}
    for number, switch_ in _SWITCHED_ON_BY.items():
        if places[number] != "default" and places[switch_] == "default" and getattr(settings, LEAVES[number].name):
            changes[LEAVES[switch_].name], places[switch_] = True, places[number]
    settings, changes = replace(settings, **changes), {}
    if settings.max_restarts_for == "all":
        crashes = settings.crash_restarts if places["rungs.in-place-restart.crash_restarts"] != "default" else 0
        if places["max_job_restarts"] == "default":  # who allows restarts after crashes allows as many at least
            changes["max_job_restarts"], places["max_job_restarts"] = max(settings.max_restarts, crashes), places["max_restarts"]
        if places["rungs.in-place-restart.crash_restarts"] == "default":
            changes["crash_restarts"] = max(0, changes.get("max_job_restarts", settings.max_job_restarts))
            places["rungs.in-place-restart.crash_restarts"] = places["max_job_restarts"]
    changes |= _progress_of(settings.ft_config, places)
    if places["rungs.hang-restart.enabled"] == "default" and _has_timeouts(settings.ft_config):
        changes["hang_restart"], places["rungs.hang-restart.enabled"] = True, places["fault_tolerance"]
    if settings.plain:
        changes |= {"hang_restart": False, "warning_requeue": False}
    switched_off = settings.hang_restart is False and places["rungs.hang-restart.enabled"] != "default"
    if switched_off and places["rungs.hang-restart.by_program"] == "default":
        changes["hang_restart_asked"] = False
        places["rungs.hang-restart.by_program"] = places["rungs.hang-restart.enabled"]
    budget, unsaid = 0, places["rungs.node-replacement.budget"] == "default"
    for leaf, given, rung, worth in (
        ("nodes.spares", settings.spares, Rung.NODE_REPLACEMENT, settings.spares),
        ("nodes.min", settings.min_nodes, Rung.SHRINK, _SHRINKS),
    ):
        name = f"rungs.{rung}.enabled"
        if given and places[name] == "default":
            changes[LEAVES[name].name], places[name] = True, places[leaf]
        if given and unsaid:
            budget, places["rungs.node-replacement.budget"] = budget + worth, places[leaf]
    if budget:
        changes["node_replacements"] = min(budget, 128)
    return _with_enough(replace(settings, **changes), places)


def _with_enough(settings: Settings, places: dict[str, str]) -> Settings:
    """What rungs that are switched on need, where nobody has said it."""
    changes: dict[str, Any] = {}
    budget, least = "rungs.node-replacement.budget", "nodes.min"
    if settings.shrink and places[least] == "default":
        changes["min_nodes"], places[least] = _SHRUNK_LEAST, places["rungs.shrink.enabled"]
    wanted = ((Rung.SHRINK, settings.shrink, _SHRINKS), (Rung.NODE_REPLACEMENT, settings.node_replacement, _REPLACEMENTS))
    for rung, on, worth in wanted:
        if on and places[budget] == "default":
            changes["node_replacements"], places[budget] = worth, places[f"rungs.{rung}.enabled"]
    settings = replace(settings, **changes)
    if settings.node_replacement and not settings.node_replacements:
        places["rungs.node-replacement.enabled"] = places[budget]
        return replace(settings, node_replacement=False)
    return settings


_TIMEOUTS = (
    "initial_rank_heartbeat_timeout", "rank_heartbeat_timeout", "rank_section_timeouts", "rank_out_of_section_timeout",
)  # fmt: skip


# ft_launcher's keys for the same.
_PROGRESS = (
    ("checkpoint_iteration_file", "progress.file"), ("min_progress_iterations", "progress.iterations"),
    ("max_no_progress_cycles", "progress.attempts"),
)  # fmt: skip


def _progress_of(ft_config: str, places: dict[str, str]) -> dict[str, Any]:
    """Field -> value, where ft_launcher's configuration names it and nothing else does."""
    import json

    given = json.loads(ft_config) if ft_config else {}
    found = {}
    for key, name in _PROGRESS:
        if given.get(key) is not None and places[name] == "default":
            value = given[key]
            found[LEAVES[name].name] = value if isinstance(value, str) else max(0, int(value))
            places[name] = places["fault_tolerance"]
    return found


def _has_timeouts(ft_config: str) -> bool:
    """Does ft_launcher's configuration set one? There a rank that misses it is killed, and all start again."""
    import json

    given = json.loads(ft_config) if ft_config else {}
    return any(given.get(name) not in (None, "", "none", "null", "None", {}) for name in _TIMEOUTS)


def _check_lease(settings: Settings, places: Mapping[str, str]) -> None:
    """Raises: PolicyError for leases that would end ranks too soon, or save nobody."""
    if not settings.silence_s:
        raise PolicyError(f"{places['nodes.silence']}: nodes.silence 0 s: ftrun would miss no node", hint="leave it out for 15 s")
    # The last answer may have been lost: then the lease counts from the renewal before. Then come silence and the second proof.
    least_s = settings.silence_s * (1 + 1 / BEATS) + settings.probe_s + settings.lease_margin_s
    if settings.lease_s < least_s:
        raise PolicyError(
            f"{places['lease.time']}: lease.time {settings.lease_s:g} s is below the minimum of {least_s:g} s"
            " (by nodes.silence, nodes.probe_timeout, lease.margin)",
            hint="make it several times nodes.silence",
        )
    if settings.lease_margin_s < LEAST_MARGIN_S:
        raise PolicyError(
            f"{places['lease.margin']}: lease.margin {settings.lease_margin_s:g} s leaves no time to kill in",
            hint=f"make it {LEAST_MARGIN_S:g}s or more",
        )


def known_leaf(name: str, place: str) -> Any:
    """Raises: PolicyError for a name that is none of ours, with the nearest that is."""
    if name in LEAVES:
        return LEAVES[name]
    if name.startswith("rungs."):
        rung = name.split(".")[1]
        if rung not in RUNG_NAMES:
            raise PolicyError(
                f"{place}: `{rung}` is not a rung{suggestion(rung, RUNG_NAMES)}",
                hint=f"the rungs are {', '.join(RUNG_NAMES)}",
            )
    if name.partition(".")[0] == "limits":
        raise PolicyError(f"{place}: limits count in the site's policy alone", hint="put them into /etc/ftslurm/policy.yaml")
    raise PolicyError(f"{place}: there is no setting `{name}`{suggestion(name, LEAVES)}", hint="`ftslurm explain` lists them all")


def parse_leaf(name: str, raw: Any, place: str) -> Any:
    """Raises: PolicyError when `raw` is no value for the leaf."""
    kind = LEAVES[name].metadata["kind"]
    where = place if place.endswith(f" {name}") else f"{place}: {name}"  # `--ft-set NAME` has named it
    if raw is None:
        raise PolicyError(f"{where}: no value", hint=how_to_correct(kind))
    return value_of(kind, raw, where)


def from_tree(tree: Mapping[str, Any], place_of: Callable[[str], str]) -> Layer:
    """A nested mapping (a policy file) as a layer; `rungs: {fail: {}}` adds nothing."""
    values = dict(_flatten(tree, ""))
    return Layer(values, {name: place_of(name) for name in values})


def _flatten(tree: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in LEAVES:
            yield from _flatten(value, f"{name}.")
        else:
            yield name, value


# Variable of ModelArts, our setting, its unit in seconds and in words. Sources: ModelArts, hang detection and fault recovery.
_MODELARTS = (
    ("MA_HANG_DETECT_TIME", "hang.detect_time", 60.0, "minutes"),
    ("MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS", "requeue.cleanup_grace", 1.0, "seconds, or -1"),
)


def from_modelarts(env: Mapping[str, str]) -> Layer:
    """ModelArts' own variables as a layer. Raises: PolicyError."""
    values, places = {}, {}
    for variable, leaf, unit_s, unit in _MODELARTS:
        raw = env.get(variable, "").strip()
        if raw:
            values[leaf], places[leaf] = _modelarts(variable, raw, leaf, unit_s, unit), f"environment {variable}"
    return Layer(values, places)


def _modelarts(variable: str, raw: str, leaf: str, unit_s: float, unit: str) -> str:
    if raw == "-1" and LEAVES[leaf].metadata["kind"] is grace:
        return raw
    try:
        number = float(raw)
        if not 0 < number < 1e6:
            raise ValueError
    except ValueError:
        example = "30" if unit == "minutes" else "10"
        raise PolicyError(
            f"environment: {variable}={raw}: not a number of {unit}", hint=f"write {unit}, such as {example}"
        ) from None
    return f"{number * unit_s:.3f}s"


def _plain_seconds(raw: str) -> str:
    seconds = float(raw)
    if not 0 < seconds < 1e6:
        raise ValueError("not a number of seconds")
    return f"{seconds:.3f}s"


C4D_VARIABLES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "C4D_HANG_TIMEOUT": ("hang.c4d_timeout", _plain_seconds),
    "C4D_HANG_TIMES": ("hang.c4d_times", count(1, 100_000)),
}


def from_c4d(env: Mapping[str, str], place: str = "environment") -> Layer:
    """C4D_HANG_TIMEOUT (seconds) and C4D_HANG_TIMES (Alibaba Cloud PAI, "Use C4D"). Raises: PolicyError."""
    values, places = {}, {}
    for name, (leaf, parse) in C4D_VARIABLES.items():
        if raw := env.get(name, "").strip():
            values[leaf] = value_of(parse, raw, f"{place}: {name}={raw}", hint=f"correct {name}, or unset it")
            places[leaf] = f"{place} {name}"
    return Layer(values, places)


def env_name(leaf: str) -> str:
    """`stop.grace` -> FTRUN_STOP_GRACE; the word `rungs` is left out: FTRUN_IN_PLACE_RESTART_ENABLED."""
    return "FTRUN_" + leaf.removeprefix("rungs.").replace(".", "_").replace("-", "_").upper()


# FTRUN_* variables that are read elsewhere: files and switches of the command line, not leaves.
OTHER_VARIABLES = frozenset({"FTRUN_POLICY", "FTRUN_PROFILE", "FTRUN_ANNOTATIONS", "FTRUN_AIMASTER", "FTRUN_VERBOSE"})


def from_environment(env: Mapping[str, str]) -> Layer:
    """The FTRUN_* variables as a layer. Raises: PolicyError for one that names no setting."""
    by_variable = {env_name(name): name for name in LEAVES}
    values, places = {}, {}
    for variable, raw in env.items():
        if not variable.startswith("FTRUN_") or variable in OTHER_VARIABLES:
            continue
        if variable not in by_variable:
            raise PolicyError(
                f"environment: {variable} sets nothing{suggestion(variable, by_variable)}",
                hint="unset it, or see `ftslurm explain` for the names",
            )
        values[by_variable[variable]] = raw
        places[by_variable[variable]] = f"environment {variable}"
    return Layer(values, places)
