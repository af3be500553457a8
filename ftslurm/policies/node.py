"""One node: is it fit for a job, what has its kernel said, what was left there, what does its clock show?

What was found goes in, a verdict with its reason comes out; and what the health check does about it. No proof, no drain: only a
finding that is BAD speaks against the node, UNKNOWN speaks for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum

from ftslurm.model.devices import CodeMeaning, DeviceHealth, FaultClass, ProbeAnswer, Severity
from ftslurm.model.exits import Process
from ftslurm.model.text import visible
from ftslurm.model.values import Value

# By it we know again what we have drained ourselves; another's reason is never touched.
PREFIX = "ftslurm: "
# Slurm keeps any length; sinfo shows some 20 characters of it, `scontrol show node` all.
MAX_REASON_CHARS = 240

Meaning = Callable[[str, str, Severity], CodeMeaning]


class NodeHealth(Enum):
    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"  # no answer, or a word that we do not know


class NodeFinding(Value):
    """One thing that was looked at. source: device, command, kernel log, leftover. stays: only a reboot takes it back."""

    source: str
    health: NodeHealth
    what: str = ""
    stays: bool = False


class NodeVerdict(Value):
    health: NodeHealth
    reason: str = ""


class Drain(Value):
    reason: str


class Undrain(Value):
    why: str


class Leave(Value):
    why: str


def judge(findings: Iterable[NodeFinding]) -> NodeVerdict:
    """BAD as soon as one finding is; GOOD only if all are. The reason is fit for `scontrol`: one line, bounded."""
    found = tuple(findings)
    for health in (NodeHealth.BAD, NodeHealth.UNKNOWN):
        if said := [f"{one.source}: {one.what}" for one in found if one.health is health]:
            return NodeVerdict(health, one_line("; ".join(said)))
    return NodeVerdict(NodeHealth.GOOD, one_line(", ".join(one.source for one in found)))


def drain_reason(verdict: NodeVerdict, job: str = "") -> str:
    """job: that was about to begin there, and now begins elsewhere."""
    tail = _met_by(job) if job else ""
    return f"{PREFIX}{verdict.reason}"[: MAX_REASON_CHARS - len(tail)] + tail


def turned_away(reason: str, job: str) -> bool:
    """Was the node, of this reason, drained by the Prolog of this job?"""
    return reason.startswith(PREFIX) and reason.endswith(_met_by(job))


def _met_by(job: str) -> str:
    return f", met by job {job}"


def next_step(verdict: NodeVerdict, drained: bool, down: bool, reboots: bool, reason: str) -> Drain | Undrain | Leave:
    """For the health check. drained, down, reboots (now, or when it is empty), reason: of the node, as Slurm has it now."""
    ours = reason.startswith(PREFIX)
    if down:
        return Leave("Slurm has the node as down")
    if verdict.health is NodeHealth.BAD:
        return Leave("it is drained already") if drained else Drain(drain_reason(verdict))
    if verdict.health is NodeHealth.GOOD and drained and ours:
        if reboots:  # by somebody's word, for which it has to stay empty
            return Leave("it is to be rebooted")
        return Undrain("what it was drained for is gone")
    if drained and not ours:
        return Leave("somebody else has drained it")
    return Leave("nothing speaks against it" if verdict.health is NodeHealth.GOOD else verdict.reason)


def device_findings(kind: str, answer: ProbeAnswer, expected: int, meaning: Meaning) -> tuple[NodeFinding, ...]:
    """What the devices of one kind say of their node. expected: how many there should be, 0 if nobody said.

    Against the node speaks a fault that neither a restart nor a reset mends and that the program did not cause. The
    milder ones are ftrun's and the Epilog's to heal.
    """
    if answer.error:
        return (NodeFinding("device", NodeHealth.UNKNOWN, f"{kind}: {answer.error}"),)
    found = []
    there = len({report.device for report in answer.reports})  # one with codes of two severities has two reports
    if there < expected:
        found.append(NodeFinding("device", NodeHealth.BAD, f"{there} of {expected} {kind} devices are there"))
    for report in answer.reports:
        for code in report.codes:
            said = meaning(report.kind, code, report.severity)
            if said.fault_class is FaultClass.ISOLATE and not said.user_induced:
                found.append(NodeFinding("device", NodeHealth.BAD, f"{kind} {report.device} shows {said.code} ({said.name})"))
        if report.health is DeviceHealth.UNKNOWN:
            found.append(NodeFinding("device", NodeHealth.UNKNOWN, f"{kind} {report.device} does not tell how it is"))
    return tuple(found) or (NodeFinding("device", NodeHealth.GOOD),)


def missing_kinds(expected: Mapping[str, int], asked: Iterable[str]) -> tuple[NodeFinding, ...]:
    """Kinds that should be there and whose tool or library is not: the devices may be well all the same."""
    return tuple(
        NodeFinding("device", NodeHealth.UNKNOWN, f"no tool for {kind} devices is on this node")
        for kind in sorted(expected.keys() - set(asked))
    )


def command_finding(status: int | None, output: str, timeout_s: float) -> NodeFinding:
    """The site's own check: 0 is good; 126, 127 and a signal are its own trouble; any other status is against the node.

    status: None if the time limit ended it, -n for signal n. output: its last line is the reason.
    """
    if status == 0:
        return NodeFinding("command", NodeHealth.GOOD)
    if status is None:
        return NodeFinding("command", NodeHealth.UNKNOWN, f"the health command was cut off after {timeout_s:g} s")
    if status < 0 or status >= 126:
        return NodeFinding("command", NodeHealth.UNKNOWN, f"the health command could not run to its end (status {status})")
    lines = [line for line in output.splitlines() if line.strip()]
    return NodeFinding("command", NodeHealth.BAD, lines[-1].strip() if lines else f"the health command gave status {status}")


def one_line(text: str) -> str:
    """Printable, on one line, without what scontrol or a shell may take for its own."""
    words = "".join(" " if char in "\"'`$\\" else char for char in visible(text)).split()
    return " ".join(words)[:MAX_REASON_CHARS]


# --- has a node as many devices as the one whose place it is to take? Nothing is held against it where nobody knows

Counts = Mapping[str, int]  # kind -> how many


def wanted(there: Mapping[str, Counts], node: str) -> Counts:
    """there: node of the step -> what its agent has seen. As many as `node` had, else as most of the others have."""
    if node in there:
        return there[node]
    counted = Counter(tuple(sorted(counts.items())) for counts in there.values())
    return dict(counted.most_common(1)[0][0]) if counted else {}


def short_of(expected: Counts, seen: Counts) -> NodeVerdict:
    """Good where nothing is missing; a kind that nothing there can read may be well all the same."""
    too_few = (
        NodeFinding("device", NodeHealth.BAD, f"{seen[kind]} of {count} {kind} devices are there")
        for kind, count in sorted(expected.items())
        if seen.get(kind, count) < count
    )
    return judge([*too_few, *missing_kinds(expected, seen)])


# --- What a job has left behind on its node, and what of it may be cleared away. Pure.
#
# A user's processes and shared memory are cleared only when Slurm says that no other job of the user is on the node. The
# same job again is another one: an Epilog may run twice, and the second time the requeued job may be there already

INIT = 1
ROOT = frozenset({0})
# Slurm's words while a job is cleaned up. Every other is of one that runs, or new to us: SIGNALING and RESIZING run.
ENDING = frozenset({"COMPLETING", "STAGE_OUT"})


class NodeJob(Value):
    """A job that Slurm has on the node. state: Slurm's word (RUNNING, COMPLETING, ...)."""

    number: int
    user_id: int
    state: str


def others_of_user(jobs: Iterable[NodeJob], number: int, user_id: int) -> tuple[NodeJob, ...]:
    """Jobs for whose sake nothing of the user is touched: all but the one whose Epilog this is, while it cleans up."""
    return tuple(job for job in jobs if job.user_id == user_id and not _is_ending(job, number))


def others(jobs: Iterable[NodeJob], number: int) -> tuple[NodeJob, ...]:
    """Anybody's."""
    return tuple(job for job in jobs if not _is_ending(job, number))


def _is_ending(job: NodeJob, number: int) -> bool:
    return job.number == number and job.state in ENDING


class LeftoversOf(Value):
    """Whose leftovers are looked for. keepers: users whose processes look after those that they start: root, and SlurmUser once
    it is known."""

    user_id: int
    keepers: frozenset[int] = ROOT


def leftover_processes(processes: Mapping[int, Process], whose: LeftoversOf) -> tuple[Process, ...]:
    """The user's that nobody looks after: none of a login or a service, and none that root or SlurmUser has started and still
    waits for. An ordinary user looks after nothing: by a setuid program two users could keep each other's processes alive.

    What escapes from a job becomes a child of init. Below another process of root's are steps (slurmstepd), sessions (sshd,
    su, cron) and what our own scripts do as the user; below one of SlurmUser's what EpilogSlurmctld does by sudo, which
    may leave no process of root's between.
    """
    return tuple(process for process in _of(processes, whose) if not _is_spared(process, processes, whose))


def spared_processes(processes: Mapping[int, Process], whose: LeftoversOf) -> tuple[Process, ...]:
    """The user's others."""
    return tuple(process for process in _of(processes, whose) if _is_spared(process, processes, whose))


def may_stand_still(pids: Collection[int], processes: Mapping[int, Process], whose: LeftoversOf) -> bool:
    """Are they, as far as they are seen, nothing but what the user has left? pids: 0 is one that cannot be seen."""
    seen = [processes[pid] for pid in pids if pid in processes]
    return 0 not in pids and all(_is_left(one, processes, whose) for one in seen)


def may_end_all(pids: Collection[int], processes: Mapping[int, Process], whose: LeftoversOf) -> bool:
    """The same of processes that stand still: then each of them is seen."""
    return may_stand_still(pids, processes, whose) and all(pid in processes for pid in pids)


def _is_left(one: Process, processes: Mapping[int, Process], whose: LeftoversOf) -> bool:
    return one.state == "zombie" or (one.user_id == whose.user_id and not _is_spared(one, processes, whose))


def _of(processes: Mapping[int, Process], whose: LeftoversOf) -> list[Process]:
    return [process for process in processes.values() if process.user_id == whose.user_id and process.state != "zombie"]


def _is_spared(process: Process, processes: Mapping[int, Process], whose: LeftoversOf) -> bool:
    return process.login or process.service or _looked_after(process, processes, whose.keepers)


def is_logged_in(processes: Mapping[int, Process], user_id: int) -> bool:
    """Is the user here in another way than by a job? Whose the shared memory is nobody can tell then."""
    return any(process.login and process.user_id == user_id for process in processes.values())


def _looked_after(process: Process, processes: Mapping[int, Process], keepers: frozenset[int]) -> bool:
    seen: set[int] = set()
    parent = processes.get(process.parent)
    while parent is not None and parent.pid not in seen:
        if parent.user_id in keepers and parent.pid != INIT:
            return True
        seen.add(parent.pid)
        parent = processes.get(parent.parent)
    return False


# --- The clock of another node: how far it is behind ours, by what it shows when a message is sent

# Between nodes with synchronised clocks.
CLOCKS_DIFFER_S = 1.0


class NodeClock:
    """A message is sent before it comes, and after what it answers: each one shows two limits. Unix seconds."""

    def __init__(self) -> None:
        self._least, self._most = float("-inf"), float("inf")
        self._answered, self._answered_at = 0, float("-inf")  # the latest beat

    def record(self, theirs: float, after: float, before: float) -> None:
        """A message was sent when that clock showed `theirs` and ours something from `after` to `before`."""
        least, most = max(self._least, after - theirs), min(self._most, before - theirs)
        # Limits that exclude each other: one of the clocks was set.
        self._least, self._most = (least, most) if least <= most else (after - theirs, before - theirs)

    def record_beat(self, number: int, has: int, theirs: float, now: float) -> None:
        """Beat `number` has come, and is about to be answered. has: the latest beat whose answer its sender had."""
        self.record(theirs, self._answered_at if has == self._answered else float("-inf"), now)
        self._answered, self._answered_at = number, now

    @property
    def behind_s(self) -> float:
        """What to add to a time of that node's; 0 unless the two are known to differ by more than synchronised ones."""
        return self._most if self._least > CLOCKS_DIFFER_S or self._most < -CLOCKS_DIFFER_S else 0.0
