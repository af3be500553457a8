"""What the judge waits for with a time limit, each wait by its name, and when which of them is due."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model.rungs import Word


class Timer(Word):
    # while the step comes up
    SLOW_LAUNCH = "slow launch"  # nodes that no task has come from are looked at
    LAUNCH = "launch"  # for ranks that are to hear a warning
    LAUNCH_AGAIN = "launch again"
    STRAGGLERS = "stragglers"  # for tasks after the first ones
    STRAGGLERS_KNOWN = "stragglers known"  # for what is found on their nodes
    OTHERS = "others"  # for the leases of ranks of an earlier ftrun
    LOOK_FOR_OTHERS = "look for others"  # to look whether Slurm lists their steps
    # while ranks run
    WATCH = "watch"  # to start agents where none has called
    COMMANDS = "commands"  # to tell people once which commands show the job
    IDLE = "idle"  # to look at nodes that no rank is on
    MEND = "mend"  # for the end of what a rank that starts again alone has left
    RANK_AGAIN = "rank again"  # to start such a rank
    USE = "use"  # for the use of devices
    EXIT = "exit"  # for the last ranks to end
    OTHERS_END = "others end"  # to end those that outlive the first rank by too long
    HOLD = "hold"  # to look anew at what may be a hang
    EVIDENCE = "evidence"  # for what ranks that may hang are doing
    EXAMINE = "examine"  # to ask for that again
    COMPARE = "compare"  # to compare ranks by speed
    HINTS = "hints"  # for what tells reasons for a hang
    PASS_ON = "pass on"  # noqa: S105 -- to pass a signal on
    WARNING = "warning"  # for ranks to end after one
    LIMIT = "limit"  # to ask when the time limit ends the job
    # while ranks are stopped and facts collected
    STOP = "stop"
    LOOK = "look"  # for what the devices show
    DIAGNOSIS = "diagnosis"  # for what is behind the failure
    PROGRESS = "progress"  # for what progress.file holds
    AWAY = "away"  # to ask a slurmctld again that is away
    # in several phases
    TELL = "tell"  # to tell people what is waited for
    ADVICE = "advice"  # for hints on a hang
    ASK = "ask"  # for Slurm's answer about the job and its nodes
    PROBE = "probe"  # for a look at nodes by another way
    PROBE_AGAIN = "probe again"
    SILENCE = "silence"  # to look again at a silent node
    LEASES = "leases"  # for the leases of silent nodes
    # while devices heal
    HEAL = "heal"
    # while other nodes are looked for
    NODE = "node"
    SEARCH_AGAIN = "search again"
    # while the step ends
    STEP = "step"  # for its end
    KILLED_STEP = "killed step"
    LEASE = "lease"  # for the leases of ranks that nobody could see end
    # while the job is given back
    REQUEUE = "requeue"  # to try that again


class Timers:
    """Those that run. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._due: dict[Timer, float] = {}

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._due

    def __repr__(self) -> str:
        return ", ".join(f"{timer} at {due:g}" for timer, due in sorted(self._due.items())) or "none"

    @property
    def running(self) -> frozenset[Timer]:
        return frozenset(self._due)

    @property
    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def at(self, timer: Timer) -> float:
        """When it is due. Raises: KeyError for one that does not run."""
        return self._due[timer]

    def due_at(self, timer: Timer, other: float) -> float:
        """When it is due; `other` if it does not run."""
        return self._due.get(timer, other)

    def any_of(self, *timers: Timer) -> bool:
        return not self._due.keys().isdisjoint(timers)

    def set(self, timer: Timer, at: float) -> None:
        self._due[timer] = at

    def follow(self, timer: Timer, at: float | None) -> None:
        """Due then; None: it is not needed any more."""
        self.stop(timer)
        if at is not None:
            self.set(timer, at)

    def set_first(self, timer: Timer, at: float) -> None:
        """Unless it runs already."""
        self._due.setdefault(timer, at)

    def stop(self, timer: Timer) -> None:
        self._due.pop(timer, None)

    def only(self, timers: Mapping[Timer, float]) -> None:
        """Stop all others."""
        self._due = dict(timers)

    def keep(self, *timers: Timer) -> None:
        """Stop all others; of these, those that run go on."""
        self._due = {timer: at for timer, at in self._due.items() if timer in timers}

    def stop_all(self) -> None:
        self._due = {}

    def take_due(self, now: float) -> list[Timer]:
        """Those that are due, by name. They run no more."""
        due = sorted(timer for timer, at in self._due.items() if at <= now)
        self._due = {timer: at for timer, at in self._due.items() if timer not in due}
        return due

    def put_off(self, seconds: float) -> None:
        self._due = {timer: at + seconds for timer, at in self._due.items()}
