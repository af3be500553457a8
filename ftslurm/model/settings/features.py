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

    file: str = leaf(secret_file, "auto")
    failure: tuple[str, ...] = leaf(words_of(), ("all",))
    requeue: tuple[str, ...] = leaf(words_of(), ("all",))
    replacement: tuple[str, ...] = leaf(words_of(), ("all",))
    restart: tuple[str, ...] = leaf(words_of(), ("digest",))
    wait: tuple[str, ...] = leaf(words_of(), ("all",))
    hang: tuple[str, ...] = leaf(words_of(), ("all",))
    message: tuple[str, ...] = leaf(words_of(), ("all",))
    end: tuple[str, ...] = leaf(words_of(), ("none",))
    burst: int = leaf(count(1, 1000), 6)
    window_s: float = leaf(lasting, 600.0)
    end_wait_s: float = leaf(lasting, 10.0)


class MetricsSettings(Value):
    """Where metrics and traces go."""

    dir: str = leaf(text, "")
    otlp: str = leaf(text, "")


_SIGNALS = ("TERM", "USR1", "USR2", "HUP", "INT", "QUIT", "CONT", "URG", "XCPU")


class StopSettings(Value):
    """How ranks are stopped."""

    # Below Slurm's KillWait (30 s unless the site changed it), so that ranks can end by themselves under both.
    grace_s: float = leaf(lasting, 20.0)
    after_signal_s: float = leaf(lasting_or_auto, 0.0)
    signal_delay_s: float = leaf(lasting, 0.0)
    kill_wait_s: float = leaf(lasting, 30.0)


class RequeueSettings(Value):
    """What happens between a requeue and the next start of the job."""

    # Slurm adds 121 s if the start time has passed before the clean-up ends.
    start_in_s: float = leaf(lasting_or_auto, 0.0)
    cleanup: tuple[str, ...] = leaf(words_of(), ())
    cleanup_grace_s: float = leaf(grace, -1.0)
    even_if_no_requeue: bool = leaf(switch, False)


class WarningSettings(Value):
    """What Slurm's warning of a time limit or a preemption leads to."""

    signals: tuple[str, ...] = leaf(words_of(*_SIGNALS), ("TERM",))
    requeue: bool = leaf(switch, False)
    grace_s: float = leaf(lasting, 60.0)


class TimeLimitSettings(Value):
    """The requeue before the time limit ends the job."""

    resume_s: float = leaf(lead, -1.0)
    resumes: int = leaf(count(1, 100_000), 100)


class PreemptionSettings(Value):
    """What a preemption leads to."""

    requeue: bool = leaf(switch, True)


class CheckpointSettings(Value):
    """How a complete checkpoint is recognised."""

    files: str = leaf(text, "")
    settle_s: float = leaf(lasting, 5.0)


class LeaseSettings(Value):
    """How long a node that is cut off may run its ranks."""

    time_s: float = leaf(lasting, 60.0)
    # The shim kills at the end of the lease, the kernel one second later; the rest is for clocks that differ.
    margin_s: float = leaf(lasting, 5.0)


class NodesSettings(Value):
    """The nodes of the step: how they are reached and checked, and what replaces them."""

    silence_s: float = leaf(lasting, 15.0)
    probe_timeout_s: float = leaf(lasting, 5.0)
    spares: int = leaf(count(0, 4096), 0)
    donor: bool = leaf(switch, True)
    donor_options: tuple[str, ...] = leaf(words_of(), ())
    replacement_wait_s: float = leaf(lasting, 300.0)
    health_command: tuple[str, ...] = leaf(words_of(), ())
    # Images are loaded at different speeds; but srun waits for ever where a node cannot even start our program.
    straggler_wait_s: float = leaf(duration, 600.0)
    address: str = leaf(text, "")
    ports: tuple[int, int] | None = leaf(port_range, None)
    secret: str = leaf(choice("auto", "munge", "file", "environment"), "auto")
    check_timeout_s: float = leaf(lasting, 30.0)
    min_healthy: int = leaf(count(0, 65536), 0)
    min: int = leaf(count(0, 65536), 0)


class DevicesSettings(Value):
    """The devices of the nodes."""

    poll_s: float = leaf(lasting, 10.0)
    answer_wait_s: float = leaf(lasting, 5.0)
    user_induced: tuple[str, ...] = leaf(words_of(), ())


class SlurmSettings(Value):
    """How Slurm is asked."""

    bin: str = leaf(text, "")
    comment: bool = leaf(switch, True)
    timeout_s: float = leaf(lasting, 60.0)
    patience_s: float = leaf(lasting, 4 * 3600.0)


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

    keep_bytes: int = leaf(count(0, 1 << 32), 16 << 20)
    tail_bytes: int = leaf(count(0, 1 << 20), 65536)
    folder: str = leaf(text, "")
    redirects: str = leaf(streams, "0")
    tee: str = leaf(streams, "0")
    line_prefix: str = leaf(text, "[${role_name}${local_rank}]:")
    local_ranks: tuple[int, ...] = leaf(local_ranks, ())
    cycle_files: str = leaf(text, "")


class RankRestartSettings(Value):
    """A single rank starts again (mode async and independent)."""

    in_a_row: int = leaf(count(1, 100_000), 20)


class InPlaceRestartSettings(Value):
    """All ranks start again on the same nodes."""

    enabled: bool = leaf(switch, True)
    same_code_limit: int = leaf(count(1, 1000), 3)
    same_code_window_s: float = leaf(lasting, 86400.0)
    self_heal_wait_s: float = leaf(lasting, 15.0)
    reset: str = leaf(choice("auto", "never"), "auto")
    reset_wait_s: float = leaf(lasting, 180.0)
    crash_restarts: int = leaf(count(0, 1000), 1)


class HangRestartSettings(Value):
    """All ranks start again on the same nodes, after a hang."""

    enabled: bool | None = leaf(switch_or_auto, None)
    in_a_row: int = leaf(count(1, 128), 3)


class WarmSettings(Value):
    """Spare processes beside the ranks, for a restart in place without imports."""

    restart: bool = leaf(switch, False)
    after_s: float = leaf(lasting, 30.0)
    packages: tuple[str, ...] = leaf(
        top_packages,
        ("torch", "numpy", "jax", "transformers", "accelerate", "lightning", "pytorch_lightning", "pandas", "scipy", "tqdm",
         "yaml", "hydra", "omegaconf"),
    )  # fmt: skip
    memory: int = leaf(count(1, 1_000_000), 1024)


class NodeReplacementSettings(Value):
    """Bad nodes are replaced, and the allocation is kept."""

    enabled: bool = leaf(switch, False)
    budget: int = leaf(count(0, 128), 0)


class ShrinkSettings(Value):
    """The job continues with fewer nodes."""

    enabled: bool = leaf(switch, False)


class IsolatedRequeueSettings(Value):
    """The job is requeued without the bad nodes."""

    enabled: bool = leaf(switch, True)


class UnconditionalRequeueSettings(Value):
    """The job is requeued, and no node is excluded."""

    enabled: bool = leaf(switch, True)
    in_a_row: int = leaf(count(1, 128), 3)


class RetrySettings(Value):
    """Which failures are retried. The words are AIMaster's, but for `Evidence`."""

    policy: str = leaf(choice("Evidence", "ExitCodeAndErrorMsg", "OnFailure", "Never"), "Evidence")
    same_error: int = leaf(count(0, 100000), 0)
    failure_rate: float = leaf(share, -1.0)
    keywords: tuple[str, ...] = leaf(words_of(), ())


class IsolationSettings(Value):
    """How long nodes stay excluded, and what later jobs remember of them."""

    expires_s: float = leaf(duration, 0.0)
    memory_s: float = leaf(lasting, 7 * 86400.0)


class BlameSettings(Value):
    """What may exclude a node."""

    on_words: int = leaf(count(0, 128), 1)


class ProgressSettings(Value):
    """How the progress of restarts is read."""

    file: str = leaf(text, "")
    iterations: int = leaf(count(0, 1_000_000_000), 1)
    attempts: int = leaf(count(0, 1_000_000), 3)


class HangSettings(Value):
    """What counts as a hang, and what is watched to find one."""

    detection: bool = leaf(switch, True)
    detect_time_s: float = leaf(duration, 1800.0)
    sample_time_s: float = leaf(lasting, 60.0)
    log_silence: bool = leaf(switch, False)
    interval_s: float = leaf(duration, 1800.0)
    exit_detection: bool = leaf(switch, False)
    exit_interval_s: float = leaf(lasting, 600.0)
    watch: str = leaf(choice("L0", "L1", "L2"), "L1")
    c4d: bool = leaf(switch, True)
    c4d_level: str = leaf(choice("Info", "Warning", "Error"), "Warning")
    c4d_timeout_s: float = leaf(duration, 10.0)
    c4d_times: int = leaf(count(1, 100_000), 18)
    stall_s: float = leaf(lasting, 180.0)
    stall_at_work_s: float = leaf(lasting, 1800.0)
    start_s: float = leaf(lasting, 600.0)
    compare_s: float = leaf(duration, 60.0)


class SdkSettings(Value):
    """The program interface, as the ranks find it."""

    provide: tuple[str, ...] = leaf(words_of("nvrx", "aimaster"), ())
    inject: bool = leaf(switch, True)
