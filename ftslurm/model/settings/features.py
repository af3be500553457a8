"""The settings of each feature, one value a feature; `tree.py` puts them together."""

from __future__ import annotations

from typing import Any

from ftslurm.model.settings.kinds import (
    TAKES,
    choice,
    count,
    duration,
    grace,
    lasting,
    lasting_or_auto,
    lead,
    leaf,
    port_range,
    secret_file,
    share,
    switch,
    switch_or_auto,
    text,
    top_packages,
    words_of,
)
from ftslurm.model.values import Value


class NotifySettings(Value):
    """Who is notified of what."""

    file: str = leaf(
        secret_file, "auto",
        "file with the addresses of the people to notify, mode 0600. auto: notify.yaml in the state folder; none: notify nobody",
    )  # fmt: skip
    failure: tuple[str, ...] = leaf(words_of(), ("all",), "who is notified when the job has failed")
    requeue: tuple[str, ...] = leaf(words_of(), ("all",), "who is notified of a requeue")
    replacement: tuple[str, ...] = leaf(words_of(), ("all",), "who is notified when a node is replaced or excluded")
    restart: tuple[str, ...] = leaf(
        words_of(), ("digest",),
        "who is notified of a restart on the same nodes. digest: all, or those named beside it, by one summary in an hour;"
        " any of these settings takes it",
    )  # fmt: skip
    wait: tuple[str, ...] = leaf(words_of(), ("all",), "who is notified when the job waits for minutes, or until somebody acts")
    hang: tuple[str, ...] = leaf(words_of(), ("all",), "who is notified of a hang that is not answered by a restart")
    message: tuple[str, ...] = leaf(words_of(), ("all",), "who receives the program's own messages")
    end: tuple[str, ...] = leaf(words_of(), ("none",), "who is notified when the job has succeeded")
    burst: int = leaf(
        count(1, 1000), 6, "messages that one address receives within notify.window; further ones are combined into one summary"
    )
    window_s: float = leaf(lasting, 600.0, "time over which notify.burst counts")
    end_wait_s: float = leaf(lasting, 10.0, "how long the end of the job may be delayed to send the last notices")


class MetricsSettings(Value):
    """Where metrics and traces go."""

    dir: str = leaf(
        text, "", "folder that node_exporter's textfile collector reads; ftrun writes one file for each job. Empty: no metrics"
    )
    every_s: float = leaf(lasting, 15.0, "interval between two updates of that file")
    keep_s: float = leaf(lasting, 3600.0, "time after the end of a job after which a later job on that node may remove its file")
    otlp: str = leaf(
        text, "",
        "OpenTelemetry endpoint for traces, such as http://collector:4318/v1/traces; the attempts of the job are sent when it"
        " ends. Empty: no traces",
    )  # fmt: skip


_SIGNALS = ("TERM", "USR1", "USR2", "HUP", "INT", "QUIT", "CONT", "URG", "XCPU")


class StopSettings(Value):
    """How ranks are stopped."""

    # Below Slurm's KillWait (30 s unless the site changed it), so that ranks can end by themselves under both.
    grace_s: float = leaf(lasting, 20.0, "time from SIGTERM to SIGKILL when ranks are stopped")
    after_signal_s: float = leaf(
        lasting_or_auto, 0.0,
        "time from SIGTERM, SIGINT, SIGHUP or SIGQUIT to ftrun until SIGKILL to the ranks. auto: stop.grace after a SIGTERM"
        " without Slurm, else until they exit",
    )  # fmt: skip
    signal_delay_s: float = leaf(
        lasting, 0.0,
        "time to wait before such a signal is passed on to ranks that have not received it (as torchrun's --monitor-interval)",
    )  # fmt: skip
    kill_wait_s: float = leaf(lasting, 30.0, "time from SIGKILL until a process counts as unkillable")


class RequeueSettings(Value):
    """What happens between a requeue and the next start of the job."""

    # Slurm adds 121 s if the start time has passed before the clean-up ends.
    start_in_s: float = leaf(
        lasting_or_auto, 0.0,
        "time from a requeue to the earliest start of the job; longer if earlier clean-ups took longer. auto: when the clean-up"
        " is expected to have ended",
    )  # fmt: skip
    cleanup: tuple[str, ...] = leaf(
        words_of(), (), "the job's own clean-up: a program and its arguments, run once on each node before a requeue"
    )
    cleanup_grace_s: float = leaf(
        grace, -1.0,
        "time to wait for the clean-up before it continues in the background (-1 = until it ends;"
        " MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS)",
    )  # fmt: skip
    even_if_no_requeue: bool = leaf(switch, False, "requeue a job even if it was submitted with --no-requeue")


class WarningSettings(Value):
    """What Slurm's warning of a time limit or a preemption leads to."""

    signals: tuple[str, ...] = leaf(
        words_of(*_SIGNALS), ("TERM",), "signals by which Slurm warns of a time limit or a preemption (sbatch --signal)"
    )
    requeue: bool = leaf(switch, False, "requeue the job after such a warning; no budget is spent")
    grace_s: float = leaf(lasting, 60.0, "time that the ranks have after the warning to write a checkpoint and exit")


class TimeLimitSettings(Value):
    """The requeue before the time limit ends the job."""

    resume_s: float = leaf(
        lead, -1.0,
        "requeue the job before its time limit ends it: this long before, the ranks get the first of warning.signals, and have"
        " until shortly before the limit to save and exit; no budget is spent. auto: what a checkpoint was seen to take, else 2m",
    )  # fmt: skip
    resumes: int = leaf(count(1, 100_000), 100, "requeues of one job by time_limit.resume, after which its limit ends it")


class PreemptionSettings(Value):
    """What a preemption leads to."""

    requeue: bool = leaf(
        switch, True,
        "requeue a job whose ranks end within the grace of a preemption, if Slurm would requeue it too; no budget is spent",
    )  # fmt: skip


class CheckpointSettings(Value):
    """How a complete checkpoint is recognised."""

    files: str = leaf(
        text, "", "pattern of the files that a checkpoint creates or changes, as seen on ftrun's node (for `ftslurm control`)"
    )
    settle_s: float = leaf(lasting, 5.0, "a checkpoint counts as complete when its files have not changed for this time")


class LeaseSettings(Value):
    """How long a node that is cut off may run its ranks."""

    time_s: float = leaf(
        lasting, 60.0, "a node that is cut off stops its own ranks after this time; must be well above nodes.silence"
    )
    # The shim kills at the end of the lease, the kernel one second later; the rest is for clocks that differ.
    margin_s: float = leaf(lasting, 5.0, "time from the end of a lease until its ranks may start elsewhere")


class NodesSettings(Value):
    """The nodes of the step: how they are reached and checked, and what replaces them."""

    silence_s: float = leaf(
        lasting, 15.0, "time without a message from a node after which Slurm and the node's slurmd are asked about it"
    )
    probe_timeout_s: float = leaf(lasting, 5.0, "how long the slurmd of a silent node may take to answer")
    spares: int = leaf(count(0, 4096), 0, "nodes of the allocation that the step leaves free to replace bad ones")
    donor: bool = leaf(switch, True, "when no spare is left, borrow a node by a small job that ftrun submits")
    donor_options: tuple[str, ...] = leaf(words_of(), (), "further sbatch options of that job, such as --constraint=a100")
    replacement_wait_s: float = leaf(lasting, 300.0, "how long to wait for a replacement node before the next rung is tried")
    health_command: tuple[str, ...] = leaf(
        words_of(), (), "program and arguments that exit with status 0 on a node that may run ranks; run before ranks start there"
    )
    # Images are loaded at different speeds; but srun waits for ever where a node cannot even start our program.
    straggler_wait_s: float = leaf(
        duration, 600.0,
        "while a step starts: longest wait for its next task, before the node is checked and the step is ended (0s = no limit)",
    )  # fmt: skip
    address: str = leaf(
        text, "",
        "where the other nodes reach ftrun: an address, a network (10.1.0.0/16) or an interface (ib0). Empty: by the address"
        " that Slurm uses",
    )  # fmt: skip
    ports: tuple[int, int] | None = leaf(
        port_range, None,
        "ports on which ftrun may listen, such as 60000-60100. Empty: SrunPortRange if the site sets it, else any port",
    )  # fmt: skip
    secret: str = leaf(
        choice("auto", "munge", "file", "environment"), "auto",
        "how the ranks and agents receive the secret of the run. auto: munge where Slurm uses it, else environment; steps in"
        " containers: file or environment",
    )  # fmt: skip
    check_timeout_s: float = leaf(lasting, 30.0, "how long the check of a node before ranks start there may take")
    min_healthy: int = leaf(
        count(0, 65536), 0, "for mode min-healthy: smallest number of nodes without an exited rank (0 = all nodes)"
    )
    min: int = leaf(count(0, 65536), 0, "smallest number of nodes that the job can run on (for shrink; 0 = all nodes)")


class DevicesSettings(Value):
    """The devices of the nodes."""

    poll_s: float = leaf(lasting, 10.0, "interval between two checks of a node's devices")
    answer_wait_s: float = leaf(lasting, 5.0, "how long to wait for the state of the devices after a rank has failed")
    user_induced: tuple[str, ...] = leaf(
        words_of(), (), "fault codes that the program causes itself, in addition to those of the catalogue"
    )


class SlurmSettings(Value):
    """How Slurm is asked."""

    bin: str = leaf(text, "", "folder of Slurm's commands (srun, scontrol, ...). Empty: searched on PATH")
    comment: bool = leaf(switch, True, "show in the job's comment what ftrun waits for, if the job has no comment of its own")
    timeout_s: float = leaf(lasting, 60.0, "how long slurmctld may take to answer")
    patience_s: float = leaf(
        lasting, 4 * 3600.0, "how long to wait for a slurmctld that is away before ftrun decides without it (0s = not at all)"
    )


STDOUT, STDERR = 1, 2
_VALUES = ("0", "1", "2", "3")


def streams(value: Any) -> str:
    """As it was written, without blanks; raises ValueError for what is neither of the two."""
    text = str(value).replace(" ", "") or "0"
    pairs = [pair.partition(":") for pair in text.split(",")]
    by_rank = all(rank.isascii() and rank.isdecimal() and which in _VALUES for rank, _, which in pairs)
    if text not in _VALUES and not by_rank:
        raise ValueError(f"`{value}` is neither 0 to 3 nor LOCAL_RANK:N,... (1: stdout, 2: stderr, 3: both)")
    return text


def streams_of(text: str, local_rank: int) -> int:
    """STDOUT | STDERR. text: as `streams` gives it."""
    if ":" not in text:
        return int(text)
    return {int(rank): int(which) for rank, _, which in (pair.partition(":") for pair in text.split(","))}.get(local_rank, 0)


def local_ranks(value: Any) -> tuple[int, ...]:
    """`0,1`, or a list of numbers; empty for all. Raises ValueError."""
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    words = [str(item).strip() for item in items if str(item).strip()]
    if not all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words):
        raise ValueError(f"`{value}` is not a list of local ranks, such as 0,1")
    return tuple(sorted({int(word) for word in words}))


TAKES |= {streams: "0 to 3, or by local rank, such as 0:3,1:2", local_ranks: "numbers of local ranks with commas"}


class LogsSettings(Value):
    """What is kept of the outputs, and where the ranks' own files go, in torchrun's words."""

    keep_bytes: int = leaf(
        count(0, 1 << 32), 16 << 20,
        "bytes of each output file of the batch script that are saved at a requeue, which may truncate the file (0 = none)",
    )  # fmt: skip
    tail_bytes: int = leaf(
        count(0, 1 << 20),
        65536,
        "bytes of each output stream of a rank that are kept to explain a failure (0 = none); 64 MB of all ranks together",
    )
    folder: str = leaf(
        text, "",
        "folder for files of the ranks, by attempt: FOLDER/attempt_0/LOCAL_RANK/stdout.log; %n in it is the slot of the node",
    )  # fmt: skip
    redirects: str = leaf(streams, "0", "streams that go into logs.folder: 1 stdout, 2 stderr, 3 both; by local rank: 0:3,1:2")
    tee: str = leaf(streams, "0", "the same, for streams that are also printed")
    line_prefix: str = leaf(
        text, "[${role_name}${local_rank}]:", "text before each line that logs.tee prints; ${rank} works, too"
    )
    local_ranks: tuple[int, ...] = leaf(
        local_ranks, (), "local ranks whose output is printed (empty = all); files are written for all"
    )
    cycle_files: str = leaf(
        text, "", "file for the output of all ranks, one per attempt, lines begin with the rank: /a/x.log makes /a/x_cycle0.log"
    )


class RankRestartSettings(Value):
    """A single rank starts again (mode async and independent)."""

    in_a_row: int = leaf(
        count(1, 100_000), 20,
        "restarts of a single rank, each soon after the previous one, before all ranks are stopped and the next rung is tried",
    )  # fmt: skip


class InPlaceRestartSettings(Value):
    """All ranks start again on the same nodes."""

    enabled: bool = leaf(switch, True, "restart the ranks on the same nodes after a device fault that can heal")
    same_code_limit: int = leaf(
        count(1, 1000), 3,
        "occurrences of the same fault code on the same device, within same_code_window, after which the node is excluded and"
        " not restarted in place",
    )  # fmt: skip
    same_code_window_s: float = leaf(lasting, 86400.0, "time over which same_code_limit counts")
    self_heal_wait_s: float = leaf(lasting, 15.0, "how long to wait for a device to recover by itself")
    reset: str = leaf(
        choice("auto", "never"), "auto",
        "auto: reset devices that do not recover by themselves, where that is permitted; never: do not reset",
    )  # fmt: skip
    reset_wait_s: float = leaf(lasting, 180.0, "how long the reset of a device may take")
    crash_restarts: int = leaf(
        count(0, 1000), 1,
        "crashes of the program in a row, without progress between, that are answered by a restart in place before a requeue is"
        " tried",
    )  # fmt: skip
    crash_restarts_total: int = leaf(
        count(0, 1000), 20,
        "crashes that one command may have answered in place in the whole job, whatever progress it makes between them",
    )  # fmt: skip


class HangRestartSettings(Value):
    """All ranks start again on the same nodes, after a hang."""

    enabled: bool | None = leaf(
        switch_or_auto, None,
        "restart the ranks on the same nodes when the job hangs and no node is to blame. auto: if a rank is named by its"
        " collectives, heartbeats, sections or MPI calls, does no work, and the job has made progress before, and as soon as the"
        " program sets a time limit of its own (calculated timeouts, a staged interval); otherwise only report the hang",
    )  # fmt: skip
    in_a_row: int = leaf(count(1, 128), 3, "consecutive hang restarts allowed before a hang fails the job")


class WarmSettings(Value):
    """Spare processes beside the ranks, for a restart in place without imports."""

    restart: bool = leaf(
        switch,
        False,
        "keep a spare process beside each Python rank that has imported warm.packages, for restarts in place without these"
        " imports; a new step, as after a replaced node, imports again",
    )
    after_s: float = leaf(lasting, 30.0, "time from a rank's last import of them to the start of its spare (with warm.restart)")
    packages: tuple[str, ...] = leaf(
        top_packages,
        ("torch", "numpy", "jax", "transformers", "accelerate", "lightning", "pytorch_lightning", "pandas", "scipy", "tqdm",
         "yaml", "hydra", "omegaconf"),
        "what a spare imports, if its rank does and nothing before could show in it; the program's own modules too, if they are"
        " named (with warm.restart)",
    )  # fmt: skip
    memory: int = leaf(
        count(1, 1_000_000), 1024,
        "megabytes of memory that a spare may take beside its rank, else there is none (with warm.restart)",
    )  # fmt: skip


class NodeReplacementSettings(Value):
    """Bad nodes are replaced, and the allocation is kept."""

    enabled: bool = leaf(switch, False, "replace a bad node by a spare or a borrowed node and keep the allocation")
    budget: int = leaf(count(0, 128), 0, "nodes that one job may replace or, for shrink, lose")


class ShrinkSettings(Value):
    """The job continues with fewer nodes."""

    enabled: bool = leaf(
        switch, False, "continue with fewer nodes if no replacement is available; nodes.min is the smallest number"
    )


class IsolatedRequeueSettings(Value):
    """The job is requeued without the bad nodes."""

    enabled: bool = leaf(switch, True, "requeue the job with the bad nodes excluded")


class UnconditionalRequeueSettings(Value):
    """The job is requeued, and no node is excluded."""

    enabled: bool = leaf(switch, True, "requeue the job when the program failed and no device or node explains the failure")
    in_a_row: int = leaf(
        count(1, 128), 3,
        "consecutive unconditional requeues, without progress and without a device or node fault in between, before the job"
        " fails",
    )  # fmt: skip


class RetrySettings(Value):
    """Which failures are retried. The words are AIMaster's, but for `Evidence`."""

    policy: str = leaf(
        choice("Evidence", "ExitCodeAndErrorMsg", "OnFailure", "Never"), "Evidence",
        "which failures are retried. Evidence: all but hopeless ones; ExitCodeAndErrorMsg: those that exit status or output"
        " calls retriable; OnFailure: all; Never: none",
    )  # fmt: skip
    same_error: int = leaf(count(0, 100000), 0, "failures of one rank with the same error that are tolerated (0 = unlimited)")
    failure_rate: float = leaf(share, -1.0, "share of the ranks that may fail before the job fails (-1 = unlimited)")
    keywords: tuple[str, ...] = leaf(
        words_of(), (), "words that mark an error as retriable when they occur in the last output of a failed rank"
    )


class IsolationSettings(Value):
    """How long nodes stay excluded, and what later jobs remember of them."""

    expires_s: float = leaf(duration, 0.0, "how long a node stays excluded from the job (0s = for the job's whole life)")
    memory_s: float = leaf(
        lasting, 7 * 86400.0, "how long later jobs remember nodes that were excluded because of a fault (0s = not at all)"
    )
    memory_jobs: int = leaf(
        count(1, 1000), 2, "number of jobs that must have excluded a node after a proven fault before it is suspect"
    )


class BlameSettings(Value):
    """What may exclude a node."""

    on_words: int = leaf(
        count(0, 128), 1,
        "nodes that one job may exclude because of what ranks printed, unless a device, Slurm or a health check confirms it (0"
        " = none)",
    )  # fmt: skip


class ProgressSettings(Value):
    """How the progress of restarts is read."""

    file: str = leaf(
        text, "", "file with the number of the last iteration that a checkpoint holds; it shows whether restarts make progress"
    )
    iterations: int = leaf(count(0, 1_000_000_000), 1, "iterations by which progress.file must grow in an attempt")
    attempts: int = leaf(
        count(0, 1_000_000), 3, "consecutive attempts without that growth after which the job fails (0 = no limit)"
    )


class HangSettings(Value):
    """What counts as a hang, and what is watched to find one."""

    detection: bool = leaf(
        switch, True, "report a hang when no process of the job does I/O and the use of its devices (or CPUs) does not change"
    )
    detect_time_s: float = leaf(
        duration, 1800.0,
        "time without process I/O on all nodes after which the use of devices is sampled (MA_HANG_DETECT_TIME, there in"
        " minutes)",
    )  # fmt: skip
    sample_time_s: float = leaf(lasting, 60.0, "how long the use of devices or CPUs is sampled before a hang is reported")
    log_silence: bool = leaf(switch, False, "report a hang when no rank has printed anything for hang.interval")
    interval_s: float = leaf(duration, 1800.0, "time without output of any rank that counts as a hang (with hang.log_silence)")
    exit_detection: bool = leaf(
        switch, False, "report a hang when some ranks have exited and the others do not exit within hang.exit_interval"
    )
    exit_interval_s: float = leaf(
        lasting, 600.0, "longest time between the first and the last exit of a rank (with hang.exit_detection)"
    )
    watch: str = leaf(
        choice("L0", "L1", "L2"), "L1",
        "probe inside Python ranks that tells which rank the others wait for. L0: none; L1: collectives; L2: also"
        " point-to-point operations and slow links (2 us a wait)",
    )  # fmt: skip
    evidence_time_s: float = leaf(lasting, 10.0, "how long to collect evidence from a hung rank before it is stopped")
    c4d: bool = leaf(
        switch, True, "watch the collectives of the ranks to see whether the job is stalled, and which rank stalls it"
    )
    c4d_level: str = leaf(
        choice("Info", "Warning", "Error"), "Warning",
        "least severity of a finding about collectives that is printed; the history has all of them",
    )  # fmt: skip
    c4d_timeout_s: float = leaf(
        duration, 10.0,
        "time without a finished collective after which the stalled rank is looked for (C4D_HANG_TIMEOUT, there in seconds)",
    )  # fmt: skip
    c4d_times: int = leaf(
        count(1, 100_000), 18, "after this many hang.c4d_timeout inside one collective, report an Error (C4D_HANG_TIMES)"
    )
    stall_s: float = leaf(
        lasting, 180.0,
        "time without a finished collective after which a stalled job counts as hung; longer if the job has made longer pauses"
        " before",
    )  # fmt: skip
    stall_at_work_s: float = leaf(
        lasting, 1800.0,
        "the same as hang.stall, while the ranks that are waited for still do work; shorter once the job's pauses are known",
    )  # fmt: skip
    start_s: float = leaf(
        lasting, 600.0, "longest wait for the first collective, from the moment the last of the waiting ranks arrived"
    )
    compare_s: float = leaf(
        duration, 60.0, "interval between two searches for ranks that are slower than the others (0s = never)"
    )


class SdkSettings(Value):
    """The program interface, as the ranks find it."""

    provide: tuple[str, ...] = leaf(
        words_of("nvrx", "aimaster"), (),
        "packages that ftslurm's own implementation replaces in the ranks, even where they are installed",
    )  # fmt: skip
    inject: bool = leaf(
        switch, True, "add the program interface (ftslurm.sdk) to PYTHONPATH of the ranks, so that it need not be installed"
    )
