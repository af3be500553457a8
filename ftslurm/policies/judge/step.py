"""What the judge knows of the step under way: its start, agents and devices, ranks that start again alone, signs of a hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ftslurm.model import events as ev
from ftslurm.model.decisions import DrillDevice, SetIntervals
from ftslurm.model.devices import Fault
from ftslurm.model.events import Now
from ftslurm.model.job import Task
from ftslurm.model.settings.features import HangSettings
from ftslurm.policies.hang.slow import SlowWatch
from ftslurm.policies.hang.stall_watch import HangWatch, StallWatch, stall_watch
from ftslurm.policies.judge.spares import Absent
from ftslurm.policies.situation import ACTS, Trouble

# --- A starting step: which steps exist, for whom it waits, how many launches failed; and the agents of its nodes

# A step that does not start may have another reason.
LAUNCHES_AGAIN = 3


class StepLaunch:
    """step: its name, from rank 0's shim. steps: node -> the step there. overlap: is it launched beside ended steps that Slurm
    still remembers? in_vain: launches that failed because of Slurm itself.
    """

    def __init__(self) -> None:
        self.step = ""
        self.steps: dict[str, str] = {}
        self.own: set[str] = set()  # all our steps so far
        self.overlap = False
        self.in_vain = 0
        self.failed = False  # did the step fail to start?
        self.undelivered = ""  # of such a step, what went wrong between srun and the nodes
        self.run_began_at = 0.0  # monotonic seconds
        self.asked_at = 0.0  # monotonic seconds, when the last step was asked for
        self._launched_at = 0.0  # the same in Unix seconds, of a step whose ranks have not been started yet
        self.others_unlisted = False  # does Slurm list no step of a killed ftrun?
        self.others_hold: frozenset[str] = frozenset()  # steps of such an ftrun, if Slurm lists no other
        self.look_in_s = 0.0  # seconds between two probes of nodes that have not called
        self.absent = Absent()  # such nodes
        self.stragglers: frozenset[str] = frozenset()  # such nodes that live and are being checked
        self.unfit: dict[str, str] = {}  # of them, node -> what the check found
        self.ended: dict[str, str] = {}  # node -> why its tasks ended before they called, as srun said

    def begin(self, now: Now, look_in_s: float) -> None:
        self.steps, self.absent, self.unfit, self.ended, self.stragglers = {}, Absent(), {}, {}, frozenset()
        self.asked_at, self._launched_at = now.mono, now.unix
        self.look_in_s, self.failed, self.undelivered = look_in_s, False, ""

    def arrive(self, node: str, step: str, first: bool) -> None:
        self.steps[node] = step
        self.own.add(step)
        if first or not self.step:
            self.step = step

    def start_ranks(self) -> float:
        """The ranks are started. Gives when the step was launched, Unix seconds; 0 if an earlier step continues."""
        at, self._launched_at, self.in_vain = self._launched_at, 0.0, 0
        return at

    def fail(self, undelivered: str = "") -> None:
        self.failed, self.undelivered = True, undelivered

    def again(self) -> None:
        """The step is launched again, or the search for its nodes begins again."""
        self.in_vain += 1

    def look_less(self, silence_s: float, most_s: float) -> float:
        """Probe less and less often, except unreachable nodes: images may load, other steps may run."""
        self.look_in_s = silence_s if self.absent else min(2 * self.look_in_s, most_s)
        return self.look_in_s

    def seen(self, node: str, unfit: str) -> None:
        """A node without tasks was checked. unfit: what was found, empty if it is healthy."""
        self.stragglers -= {node}
        if unfit:
            self.unfit[node] = unfit

    def tasks_ended(self, nodes: Iterable[str], why: str) -> None:
        self.ended.update(dict.fromkeys(nodes, why))

    def own_step(self, lent: Collection[str]) -> str:
        """The part of the step that runs in our own job; if all nodes are lent, the part of rank 0."""
        return next((step for node, step in self.steps.items() if node not in lent), self.step)


# --- the agents: which nodes have one, which are expected, and how many were lost. Times are monotonic seconds

# An agent that has not called after this time never will (srun and the start of Python take a second or two), times the longest.
AGENT_COMES_S, AGENT_MAX_S = 60.0, 640.0
# A lost agent is started again after this time, doubled with each loss.
AGENT_AGAIN_S = 10.0


class Tasks(dict[int, Task]):
    """The tasks of the step by their ranks. They are only added, or another with the same rank comes on the same node."""

    def __init__(self) -> None:
        super().__init__()
        self._by_node: dict[str, list[int]] = {}
        self._size = 0  # when that was made

    @property
    def by_node(self) -> Mapping[str, list[int]]:
        """Node -> ranks, in their order; with a thousand nodes each of which reports something it is asked again and again."""
        if self._size != len(self):
            self._by_node, self._size = {}, len(self)
            for rank in sorted(self):
                self._by_node.setdefault(self[rank].node, []).append(rank)
        return self._by_node


class AgentRoster:
    """kinds: node -> kinds of devices there, None until its agent has arrived. guards: nodes without ranks that have an agent all
    the same, in case the batch node dies.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[str, ...] | None] = {}
        self.guards: frozenset[str] = frozenset()
        self._due: dict[str, float] = {}  # monotonic seconds by which an agent should call; none once it has
        self._came: dict[str, float] = {}
        self._lost: dict[str, int] = {}  # number of agents lost on a node
        self._may = ""  # a node that could still report its devices, when that was asked last
        self.orders: dict[str, list[DrillDevice]] = {}  # what an agent is told when it has arrived

    def here(self, node: str) -> bool:
        return self.kinds.get(node) is not None

    @property
    def arrived(self) -> frozenset[str]:
        """Nodes whose agent has called, or is no longer waited for."""
        return frozenset(self.kinds.keys() - self._due.keys())

    def may_tell(self, gone: Collection[str], looked: Collection[str]) -> bool:
        """Is there a node whose devices could still be reported? An agent that has not arrived may do it. gone: dead nodes.
        looked: nodes whose devices were checked.
        """

        def may(node: str) -> bool:
            kinds = self.kinds.get(node, ())
            return node not in gone and (kinds is None or (bool(kinds) and node not in looked))

        # It is asked after each of a thousand reports. The node that was found the last time usually still may; and a search from
        # the end finds one that will for long, since agents report in about the order in which they came.
        if not may(self._may):
            self._may = next((node for node in reversed(self.kinds) if may(node)), "")
        return bool(self._may)

    def expect(self, nodes: Iterable[str], guards: Iterable[str], relieved: Iterable[str], now: float) -> None:
        """Expect agents, which are being started on `nodes` and on `guards`. relieved: nodes that are guards no longer."""
        self.guards = (self.guards | {*guards}) - {*relieved}
        for node in nodes:
            self.kinds[node] = None
            self._due[node] = now + self._doubled(AGENT_COMES_S, node)

    def arrive(self, node: str, kinds: tuple[str, ...] | None, now: float) -> bool:
        """An agent has arrived. False if nobody waits for it: its node was excluded meanwhile."""
        if node in self.guards:
            self._came[node] = now
            return True
        if node not in self.kinds:
            return False
        self.kinds[node] = kinds
        self._due.pop(node, None)
        self._came[node] = now
        return True

    def lose(self, node: str, now: float) -> float:
        """An agent was lost. Gives when to start another one."""
        self.kinds.pop(node, None)
        self.guards -= {node}
        self._due.pop(node, None)
        if now - self._came.pop(node, now) > AGENT_MAX_S:
            self._lost.pop(node, None)  # the last agent ran long: earlier losses no longer count
        again = now + self._doubled(AGENT_AGAIN_S, node)
        self._lost[node] = self._lost.get(node, 0) + 1
        return again

    def give_up_late(self, nodes: Collection[str], now: float) -> None:
        """Give up agents of `nodes` that should have called by now: they died before they could."""
        for node in [node for node, due in self._due.items() if due <= now and node in nodes]:
            del self._due[node]
            self.kinds.pop(node, None)
            self._lost[node] = self._lost.get(node, 0) + 1

    def next_due(self, nodes: Collection[str]) -> float | None:
        return min((due for node, due in self._due.items() if node in nodes), default=None)

    def forget(self, nodes: Collection[str]) -> None:
        self.kinds = {node: kinds for node, kinds in self.kinds.items() if node not in nodes}
        self._due = {node: due for node, due in self._due.items() if node not in nodes}
        self.guards -= {*nodes}

    def wait_no_more(self) -> None:
        """No longer wait to learn what devices the nodes have."""
        self.kinds = {node: kinds or () for node, kinds in self.kinds.items()}

    def _doubled(self, first_s: float, node: str) -> float:
        """The delay in seconds, doubled with each agent that was lost there: slurmctld may be away for long, and a node that
        loses every agent must not be kept busy.
        """
        return min(AGENT_MAX_S, first_s * 2.0 ** min(self._lost.get(node, 0), 16))


# --- The faults of the devices, and how many devices there are

Key = tuple[str, str, str]  # node, device, code


class DeviceView:
    """faults: the current faults. there: node -> kind -> the most devices that its agent has seen. left_alone: faults that no
    rung can handle, with ranks still running.
    """

    def __init__(self) -> None:
        self.faults: dict[Key, Fault] = {}
        self.there: dict[str, dict[str, int]] = {}
        self.left_alone: frozenset[Key] = frozenset()

    def see(self, event: ev.DevicesSeen) -> tuple[Fault, ...]:
        """The new faults. A failed check changes nothing."""
        for kind, count in event.there.items():
            counts = self.there.setdefault(event.node, {})
            counts[kind] = max(count, counts.get(kind, 0))
        if event.error:
            return ()
        shown = {fault.key: fault for fault in event.faults}
        new = tuple(fault for key, fault in shown.items() if key not in self.faults)
        gone = {key for key in self.faults if key[0] == event.node} - shown.keys()
        self.faults = {key: fault for key, fault in self.faults.items() if key not in gone} | shown
        return new

    @property
    def acting(self) -> dict[Key, Fault]:
        """The faults that need a remedy."""
        return {key: fault for key, fault in self.faults.items() if fault.fault_class in ACTS}

    def leave_alone(self, faults: Iterable[Fault]) -> None:
        self.left_alone |= {fault.key for fault in faults}

    def forget(self, nodes: Collection[str]) -> None:
        """Forget the nodes: their faults concern nobody, or have healed."""
        self.faults = {key: fault for key, fault in self.faults.items() if key[0] not in nodes}


# --- Ranks of an async job that failed and start again alone, and nodes of a min-healthy job. Times are monotonic seconds

# A rank that ran for this long made a useful start; otherwise each individual restart is delayed twice as long as the one before.
LIVED_S, BACK_OFF_MOST_S = 600.0, 60.0


class RanksAlone:
    """The path of a failed rank: its remaining processes are stopped, the cause of its end is asked for, then it starts again, at
    once or after a delay. failed_nodes: node with a failed rank -> what failed.
    """

    def __init__(self) -> None:
        self.stop()
        self.begin_attempt()

    @property
    def busy(self) -> bool:
        """Is a rank between its failure and its next start?"""
        return bool(self._mending or self._again)

    @property
    def next_mended(self) -> float | None:
        return min((until for _, until in self._mending.values()), default=None)

    @property
    def next_again(self) -> float | None:
        return min(self._again.values(), default=None)

    def stop(self) -> None:
        """Forget all: all ranks are stopped, or new ones start."""
        self._mending: dict[int, tuple[Trouble, float]] = {}  # rank -> why, until when
        self._asked: frozenset[int] = frozenset()  # those of them whose cause is being analysed
        self._again: dict[int, float] = {}  # rank with a delayed start -> until when

    def begin_attempt(self) -> None:
        self.failed_nodes: dict[str, str] = {}
        self.given_up: dict[int, Trouble] = {}  # ranks that do not start again while the others run on
        self._times = Counter[int]()  # rank -> how often it was started alone in this attempt
        self._in_a_row: dict[int, tuple[int, float]] = {}  # rank -> how often it was started alone in a row, and when last

    def mend(self, rank: int, trouble: Trouble, until: float) -> None:
        self._mending[rank] = (trouble, until)

    def is_mended(self, rank: int) -> bool:
        """Are its remaining processes being stopped?"""
        return rank in self._mending and rank not in self._asked

    def ask(self, rank: int, until: float) -> None:
        """All its processes have ended; the cause is being analysed."""
        self._asked |= {rank}
        self._mending[rank] = (self._mending[rank][0], until)

    def is_asked(self, rank: int) -> bool:
        return rank in self._asked

    def take(self, rank: int) -> Trouble:
        """The rank is ready and the cause is known. Gives why it ended."""
        self._asked -= {rank}
        return self._mending.pop(rank)[0]

    def late(self, now: float) -> Mapping[int, Trouble]:
        """Ranks whose processes, or whose analysis, took longer than the limit."""
        return {rank: trouble for rank, (trouble, until) in self._mending.items() if until <= now}

    def in_a_row(self, rank: int, now: float) -> int:
        count, last = self._in_a_row.get(rank, (0, 0.0))
        return count if now - last < LIVED_S else 0

    def times(self, rank: int) -> int:
        """How often it was started alone in this attempt."""
        return self._times[rank]

    def start(self, rank: int, now: float) -> float:
        """Count its next start. Gives the delay in seconds."""
        self._times[rank] += 1
        count = self.in_a_row(rank, now)
        wait_s = min(2.0 ** (count - 1), BACK_OFF_MOST_S) if count else 0.0
        self._in_a_row[rank] = (count + 1, now + wait_s)
        if wait_s:
            self._again[rank] = now + wait_s
        return wait_s

    def take_due(self, now: float) -> list[int]:
        """Ranks whose delay is over."""
        due = sorted(rank for rank, at in self._again.items() if at <= now)
        self._again = {rank: at for rank, at in self._again.items() if rank not in due}
        return due


# --- What is known of hangs: signs outside the ranks, stalls, slow ranks, and exits that do not come


def intervals(hang: HangSettings, stages: Collection[float]) -> SetIntervals:
    """The limits for silence and for no I/O, as the programs have set them for their present work. stages: seconds, by rank that
    has set one; below 0: the program has switched detection off.
    """

    def limit(usual_s: float, wanted: bool) -> float:
        off = not wanted or any(stage < 0 for stage in stages)
        return 0.0 if off else max(stages, default=usual_s)

    return SetIntervals(limit(hang.interval_s, hang.log_silence), limit(hang.detect_time_s, hang.detection))


class HangSigns:
    """hung: a hang that waits for the evidence. calculated: keys of ft_launcher's configuration that the program calculated."""

    def __init__(self, settings: HangSettings) -> None:
        self.calculated: dict[str, Any] = {}
        self._heard: dict[tuple[int, int], int] = {}  # (rank, start) -> number of the last note of its program that was handled
        self.begin_attempt(settings)

    def begin_attempt(self, settings: HangSettings, number: int = 0) -> None:
        self.watch = HangWatch()
        self.still: StallWatch = stall_watch(settings, number)
        self.slow = SlowWatch()
        self.hung: Trouble | None = None
        self.first_end: float | None = None  # monotonic seconds, when the first rank ended
        self.exit_s: float | None = settings.exit_interval_s  # from then to the end of the last rank; None: no limit

    def watch_anew(self) -> HangWatch:
        """Start all watches again. Gives what was seen until now."""
        before, self.watch = self.watch, HangWatch()
        return before

    def rank_ended(self, now: float) -> bool:
        """Is it the first rank to end?"""
        first, self.first_end = self.first_end is None, now if self.first_end is None else self.first_end
        return first

    def put_off(self, seconds: float) -> None:
        """ftrun was suspended with its ranks: their time without progress does not count on."""
        self.still.put_off(seconds)
        self.first_end = None if self.first_end is None else self.first_end + seconds

    @property
    def last_end_due(self) -> float | None:
        """When the last rank should have ended; None: nobody waits for it."""
        return None if self.exit_s is None or self.first_end is None else self.first_end + self.exit_s

    def hears(self, rank: int, start: int, place: int) -> bool:
        """Is the note new? place: its number, 0 if it has none."""
        if place and place <= self._heard.get((rank, start), 0):
            return False
        if place:
            self._heard[rank, start] = place
        return True

    def keep_limits(self, words: Sequence[str]) -> None:
        """Keep limits as ft_launcher's monitors do, over all restarts: what was calculated once holds from the next start on."""
        from ftslurm.model.settings.ft_config import calculated, with_calculated  # most programs calculate nothing

        self.calculated = with_calculated(self.calculated, calculated(words))
