"""Ledgers for reports: a big job of some days with one outage of every kind, and one that was written by an enemy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ftslurm.model import record as rec

T = 1_795_000_000.0
H = 3600.0
NODES = "n[1-64]"
SCRIPT = "<script>document.title='pwned';window.pwned=1</script><img src=x onerror='window.pwned=1'>"
HOSTILE = (
    SCRIPT, "</style><style>body{display:none}</style>", "' onmouseover='window.pwned=1", "\x1b]0;pwned\x07\x1b[2J", "{{ 7*7 }}",
    "[x](javascript:window.pwned=1)", "| a | b |\n# heading", "$\\frac{1}{", "\u202egnp.exe", "&lt;b&gt;", "x" * 9000,
)  # fmt: skip


class _Job:
    def __init__(self) -> None:
        self.records: list[rec.Record] = []
        self.attempt = 0
        self.schedule = -1

    def add(self, *records: rec.Record) -> None:
        self.records += records

    def run(self, at: float, nodes: str = NODES, submit: float = 0.0, start: float = 0.0) -> None:
        self.schedule += 1
        self.add(rec.RunBegan(
            T + at, f"r{self.schedule}", "4711", "alps", self.schedule, "k", "train.py --model 70b --tp 8 --pp 4", nodes,
            int(T + (start or at - 12)), "llm", "srun", "0.1.0", "n1", 999, {"max_restarts": 8, "node_replacements": 2}, 4711,
            submit_time=int(T + (submit or at - 700)), log="/scratch/me/slurm-4711.out",
        ))  # fmt: skip

    def begin(
        self, at: float, nodes: str = NODES, took: float = 6.0, first: float = 90.0, step: int = 0, new_at: float = 0.0
    ) -> None:
        """first: seconds to its first step. new_at: seconds to the first that is new; 0: the first is."""
        self.attempt += 1
        self.add(rec.AttemptBegan(
            T + at, f"r{self.schedule}", self.attempt, self.schedule, "k", self.attempt, nodes, 512, "4711.0", "96(x64)", "8(x64)",
            T + at - took,
        ))  # fmt: skip
        if first:
            self.add(rec.StepReached(T + at + first, self.attempt, step + 1, not new_at))
        if new_at:
            self.add(rec.StepReached(T + at + new_at, self.attempt, step + 120, True))

    def fail(
        self, at: float, rung: str, cause: str, what: str, verdict: dict[str, Any], noticed: float = 1.0, stop: float = 12.0,
        decide: float = 2.0, step: int = 0, drill: tuple[str, ...] = (), **decided: Any,
    ) -> None:  # fmt: skip
        seen = rec.TroubleSeen(T + at, self.attempt, cause, what, T + at - noticed if noticed else 0.0, drill)
        self.add(
            seen,
            rec.AttemptEnded(T + at + stop + decide, self.attempt, {"was killed by SIGTERM": 511, "exited with status 1": 1}, step,
                             stopped=T + at + stop),
        )  # fmt: skip
        if verdict:
            self.add(rec.Diagnosed(T + at + stop + decide, self.attempt, **verdict))
        self.add(rec.Decided(
            T + at + stop + decide, f"r{self.schedule}-{self.attempt}", self.attempt, rung, cause, f"{seen.words}; so {rung}",
            (("in-place-restart", "no device fault that heals"), ("hang-restart", "no hang")), **decided,
        ))  # fmt: skip

    def handed_over(self, at: float) -> None:
        self.add(
            rec.CarriedOut(T + at, f"r{self.schedule}-{self.attempt}", True, "requeued"),
            rec.Finished(T + at, f"r{self.schedule}", 75, "requeued"),
        )


def big_job() -> list[rec.Record]:
    """Three days on 64 nodes with 512 GPUs: healed in place, a node replaced, a hang, a crash, a dead batch node, an out-of-memory
    that is the program's. It still runs."""
    job = _Job()
    job.run(0)
    job.begin(20)
    job.add(rec.FaultSeen(T + 9 * H, "n17", "gpu 3", "xid 94", "contained ECC error", "self-healing"))
    job.fail(9 * H, "in-place-restart", "device", "xid 94 (contained ECC error) on device gpu 3 of n17", {
        "signature": "xid-94", "error_class": "hardware", "retriable": "yes", "confidence": "fact",
        "what": "xid 94 (contained ECC error) on device gpu 3 of n17", "said": "xid 94", "meaning": "contained ECC error",
        "place": "device gpu 3 of n17", "evidence": ("NVRM: Xid (PCI:0000:9b:00): 94, pid=77, Contained: SM (0x1)",),
    }, noticed=0.0, step=5400)  # fmt: skip
    job.add(rec.Waiting(T + 9 * H + 14, 1, "device gpu 3 of n17 to heal or to be reset"))
    job.begin(9 * H + 61, took=0.0, first=75, step=5300, new_at=675)
    job.add(rec.Drilled(T + 15 * H - 2, 2, "rank-crash", "rank 7", "SIGKILL"))
    job.fail(15 * H, "in-place-restart", "crash", "rank 7 on n1 was killed by SIGKILL", {
        "signature": "SIGKILL", "error_class": "unknown", "retriable": "unknown", "confidence": "weak",
        "what": "rank 7 was killed", "drill": True,
    }, step=9000, drill=("rank-crash of rank 7",))  # fmt: skip
    job.begin(15 * H + 16, took=0.0, first=70, step=8990, new_at=130)
    job.add(
        rec.HangSeen(
            T + 30 * H,
            3,
            "stall",
            "no rank has finished a step for 612 s",
            ("rank 200 on n26 waits in nobody's",),
            ranks=(200,),
            nodes=("n26",),
            hang_class="RankNonCommHang",
            level="Error",
            since=T + 30 * H - 612,
        )
    )
    job.add(
        rec.CulpritSeen(
            T + 30 * H,
            3,
            "RankNonCommHang",
            "Error",
            (200,),
            ("n26",),
            "all_reduce",
            "its main thread reads a file",
            ("rank 200: read() in dataset.py:88",),
            ("n26",),
        )
    )
    job.fail(
        30 * H,
        "node-replacement",
        "hang",
        "hang: no rank has finished a step for 612 s",
        {},
        noticed=612.0,
        stop=34.0,
        decide=4.0,
        step=17000,
        isolate={"n26": "RankNonCommHang: rank 200 on n26"},
        exclude=("n26",),
        cost="node_replacements",
    )
    job.add(rec.NodeLent(T + 30 * H + 90, "r0", "n80", 4802))
    new = "n[1-25,27-64,80]"
    job.add(rec.SlotsChanged(T + 30 * H + 92, "r0", 0, (), {"25": "n80"}))
    job.begin(30 * H + 131, new, took=31.0, first=95, step=16950, new_at=410)
    job.fail(41 * H, "isolated-requeue", "hardware", "rank 90 on n12 exited with status 1", {
        "signature": "nccl-remote", "error_class": "network", "retriable": "yes", "confidence": "strong", "rank": 90, "node": "n12",
        "what": "NCCL remote error", "said": "ncclRemoteError: remote process exited or there was a network error",
        "meaning": "the network between two nodes failed", "place": "ProcessGroupNCCL.cpp:2114", "spread": "on 1 of 512 ranks",
        "evidence": ("rank 90 on n12: mlx5_3: Local work queue catastrophic error", "rank 91 on n12: ncclRemoteError"),
        "blamed": {"n12": "its HCA reported a catastrophic error"},
    }, step=23000, isolate={"n12": "mlx5_3: catastrophic error"}, exclude=("n12", "n26"), cost="max_restarts")  # fmt: skip
    job.handed_over(41 * H + 20)
    newer = "n[1-11,13-25,27-64,81-82]"
    job.run(41 * H + 95, newer, start=41 * H + 80, submit=41 * H + 60)
    job.begin(41 * H + 121, newer, took=20.0, first=110, step=22900, new_at=800)
    # its batch node dies
    job.add(rec.TroubleSeen(T + 55 * H, job.attempt, "node", "n1: Slurm says DOWN, not responding"),
            rec.AttemptEnded(T + 55 * H, job.attempt, {"unknown": 512}))  # fmt: skip
    newest = "n[2-11,13-25,27-64,81-83]"
    job.run(55 * H, newest, start=55 * H - 15, submit=55 * H - 40)
    job.begin(55 * H + 30, newest, took=25.0, first=100, step=30000, new_at=1500)
    job.fail(66 * H, "unconditional-requeue", "crash", "rank 3 on n2 exited with status 1", {
        "signature": "oom-host", "error_class": "oom", "retriable": "once", "confidence": "fact", "rank": 3, "node": "n2",
        "what": "killed for want of memory", "said": "oom-kill", "meaning": "more memory than there is", "ranks": (3,),
    }, step=36000, exclude=("n12", "n26"), cost="max_restarts")  # fmt: skip
    job.add(
        rec.Reinstated(
            T + 66 * H + 14, job.attempt, "RankNonCommHang", {"n26": "the same rank hung on another node: the program"}
        )
    )
    job.handed_over(66 * H + 20)
    job.run(66 * H + 140, newest, start=66 * H + 125, submit=66 * H + 30)
    job.begin(66 * H + 165, newest, took=20.0, first=100, step=35900, new_at=300)
    return job.records


NOW = T + 72 * H


def hostile(records: Sequence[rec.Record], words: Sequence[str] = HOSTILE) -> list[rec.Record]:
    """The same, with an enemy's words in every text that is no word of ours."""
    count = 0

    def word() -> str:
        nonlocal count
        count += 1
        return words[count % len(words)]

    def spoil(name: str, value: Any) -> Any:
        if name in ("run", "step_key", "id", "rung", "cause", "cost", "launcher", "gpus", "cpus"):
            return value
        if isinstance(value, str):
            return word()
        if isinstance(value, dict):
            return {
                word() if isinstance(one, str) else key: word() if isinstance(one, str) else one for key, one in value.items()
            }
        if isinstance(value, tuple) and value and isinstance(value[0], str):
            return tuple(word() for _ in value)
        return value

    return [replace(one, **{field.name: spoil(field.name, getattr(one, field.name)) for field in fields(one)}) for one in records]
