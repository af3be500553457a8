"""The environment variables that people and programs meet, each with its meaning, for the reference. Those of settings
(FTRUN_STOP_GRACE, ...) are made from the settings' names and not listed here."""

from __future__ import annotations

from collections.abc import Mapping

# What ftrun, ft_launcher and ftslurm read, beside a variable for each setting.
READ: Mapping[str, str] = {
    "FTSLURM_STATE_DIR": "folder of the ledgers, on a file system that all nodes share; `~/.ftslurm` if it is not set",
    "FTRUN_POLICY": "as `--ft-policy`",
    "FTRUN_PROFILE": "as `--ft-profile`",
    "FTRUN_ANNOTATIONS": "as `--ft-annotations`",
    "FTRUN_AIMASTER": "as `--ft-aimaster`",
    "FTRUN_VERBOSE": "as `--ft-verbose`, if it is set and not 0",
    "FTSLURM_FT_LAUNCHER": "nvidia: `ft_launcher` becomes NVIDIA's own, where that is installed; ftslurm: ours (default)",
    "FTSLURM_DCMI": "path of libdcmi.so where it is not the driver's own, or `off`",
    "MA_HANG_DETECT_TIME": "minutes without process IO before the use of devices is sampled: sets hang.detect_time",
    "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": "seconds to wait for the clean-up before a requeue, or -1 to wait until it"
    " ends: sets requeue.cleanup_grace",
    "C4D_HANG_TIMEOUT": "seconds: sets hang.c4d_timeout",
    "C4D_HANG_TIMES": "a number: sets hang.c4d_times",
}

# What each rank gets. The first seven are also printed by `ftslurm env` and set by the TaskProlog.
COUNTERS: Mapping[str, str] = {
    "MA_SCHEDULE_CNT": "how often this slot has been scheduled: 1 in a new job, one more after each requeue; after a node"
    " replacement one more in the replaced slot only",
    "MA_PROC_START_CNT": "how often the command has run in this slot since it was last scheduled: 1 at first, one more after each"
    " restart in place, and in the other slots of a node replacement. Above 1, /dev/shm and /tmp are as the last run left them",
    "FTSLURM_ATTEMPT": "number of this start over the whole life of the job, from 1; starts of all its ftruns count, and no two"
    " share one",
    "FTSLURM_RESTART_RUNG": "the remedy that led to this start, such as in-place-restart; empty at first, requeue-by-slurm after"
    " a requeue that ftrun did not ask for",
    "FTSLURM_RESTART_CAUSE": "why it was used: device, hardware, node, crash, lost, hang, warning, request, outside; empty at"
    " first",
    "FTSLURM_EXCLUDED_NODES": "nodes that the job has excluded so far, such as n[3,7]",
}
RANK: Mapping[str, str] = {
    "FTSLURM_STEP_ATTEMPT": "number of this start of this command over the whole life of the job, from 1",
    "FTSLURM_PAGE": "where the shared page of the rank is, for the program interface",
    "FTSLURM_WATCH": "level of the probe (hang.watch)",
    "FTSLURM_FT_CONFIG": "ft_launcher's configuration, for its client",
    "FTSLURM_WARM": "what a spare process of the rank has to know (warm.restart); gone before the program begins",
    "FTSLURM_PROVIDE": "packages that ftslurm's own implementation replaces (sdk.provide)",
}
# With rendezvous=torch; a value that the user has set stays.
TORCH = (
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip
# What a program that is told a notice gets (notify.yaml).
NOTICE: Mapping[str, str] = {
    "FTSLURM_NOTICE_KIND": "the event: failure, requeue, replacement, hang, message, restart or end",
    "FTSLURM_NOTICE_JOB": "number of the job",
    "FTSLURM_NOTICE_TITLE": "the first line of the notice",
}
# Between processes of ftslurm's own; they may change at any time.
INTERNAL = (
    "FTSLURM_CALLED", "FTSLURM_CHANNEL", "FTSLURM_CLAIM", "FTSLURM_CONTROL_BY", "FTSLURM_LD_AUDIT", "FTSLURM_LD_PRELOAD",
    "FTSLURM_LOCAL", "FTSLURM_LOCAL_JOB", "FTSLURM_LOCAL_NODES", "FTSLURM_LOCAL_STEP",
)  # fmt: skip
