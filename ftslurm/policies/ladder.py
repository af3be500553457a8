"""The ladder: which remedy answers a trouble. Reads from top to bottom; every rung says why it is not the one.

Source: ModelArts, fault recovery of training jobs (rungs, triggers, degradations); what differs stands in the rung's own comment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum

from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.events import SlurmAnswered
from ftslurm.model.folds.history import History
from ftslurm.model.job import Call, Reading
from ftslurm.model.rungs import LEAVES, REQUEUES, RESTARTS, Budget, Capability, Rung, RungRemedy
from ftslurm.model.settings.features import InPlaceRestartSettings
from ftslurm.model.settings.kinds import ALONE
from ftslurm.model.settings.tree import Settings, most_crash_restarts, noting, read_of
from ftslurm.model.text import counted, how_often
from ftslurm.model.values import Value, field, replace
from ftslurm.model.verdict import Confidence, Retriable, Verdict
from ftslurm.policies.node_charges import Series

PORTS_IN_A_ROW = 5


class Cause(str, Enum):
    """What stands behind a trouble, as far as it is known."""

    DEVICE = "device"  # a graded fault code on a node of the job
    INDUCED = "user-induced"  # such codes, all of them the doing of the program or its data
    NODE = "node"  # Slurm says that a node of the job is down or failing, or it cannot end its processes
    HARDWARE = "hardware"  # what a rank printed before it failed tells of a broken device or link of its node
    CRASH = "crash"  # a rank failed, and no device or node is behind it as far as is known
    UNSTARTABLE = "unstartable"  # the command cannot be executed on any node
    LAUNCH = "launch"  # the step did not come up, and the command has never run
    LOST = "lost"  # a task or the step was lost; the reason is unknown
    HANG = "hang"  # the ranks stand still
    WARNING = "warning"  # Slurm announced the end of the allocation
    REQUEST = "request"  # the owner of the job has asked for it


_FAULTS = (Cause.DEVICE, Cause.INDUCED)
# Somebody's will and no failure: no cause is looked for, and no budget pays.
WILLED = frozenset({Cause.WARNING, Cause.REQUEST})

# By then Slurm itself has noticed that a node is dead (up to twice SlurmdTimeout, which is 300 s by default) and starts nothing
# there; or the node is back.
SLURM_KNOWS_S = 1800.0
_ENDS_THIS_FTRUN = REQUEUES | {Rung.FAIL}


class OtherNodes(Value):
    """What there is in the place of bad nodes, and where there is nothing, why."""

    spares: int = 0  # nodes held back that nothing speaks against
    no_donor: str = ""  # why none can be borrowed
    no_swap: str = ""  # why no node can be replaced by another one
    unreplaced: str = ""  # why no other node was found for a bad one
    unended: str = ""  # why no other step may start in this allocation
    no_requeue: str = ""  # why the launcher is not able to requeue the job
    not_again: str = ""  # why this ftrun cannot start the ranks again, on whatever nodes


class Alone(Value):
    """in_a_row: how often `rank` was started again alone, each time soon after the time before."""

    rank: int
    in_a_row: int


class Wish(Value):
    """What caller and program make of a failure."""

    call: Call = Call()
    shut_down: str = ""  # why the program itself wants the job ended


class Situation(Value):
    """All that the ladder may look at."""

    cause: Cause
    what: str
    status: int  # with which ftrun would end
    history: History
    settings: Settings
    now: float  # Unix seconds
    slurm: SlurmAnswered | None = None
    can: frozenset[Capability] = frozenset()  # what the launcher is able to do
    verdict: Verdict | None = None  # what is behind it, None before that is known (the history has it, too)
    wish: Wish = Wish()
    port_taken: int = 0  # the port chosen for the rendezvous, if the ranks failed because somebody else has it
    # The ranks.
    tasks: int = 0
    step: frozenset[str] = frozenset()  # their nodes
    not_in_place: str = ""  # why they cannot be started again in place, empty if they can
    alone: Alone | None = None  # the rank of an async job that failed while all others run; None: the whole attempt is over
    # The nodes.
    faults: tuple[Fault, ...] = ()
    unhealed: Mapping[str, str] = field(default_factory=dict)  # node -> why healing failed
    blamed: Mapping[str, str] = field(default_factory=dict)  # node -> reason: something speaks against it
    on_words: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of these: nothing but such words does; how often
    proven: frozenset[str] = frozenset()  # of these: a fact of this job does
    returned: frozenset[str] = frozenset()  # of these, nodes on loan that were called back: nothing else does
    spared: Mapping[str, str] = field(default_factory=dict)  # node -> why it is accused and yet not blamed
    dead: frozenset[str] = frozenset()  # nodes that do not live now
    others: OtherNodes = field(default_factory=OtherNodes)
    series: Series = Series()  # of a crash that no fact explains

    @property
    def bad(self) -> dict[str, str]:
        """node -> why it shall not be used again."""
        return {node: why for node, why in self.blamed.items() if node not in self.returned}

    @property
    def experiment(self) -> str:
        """The node without which the job runs next, to see whether it fails there as well; empty: no experiment is wanted."""
        wanted = (
            self.cause is Cause.CRASH and self.alone is None and not (self.blamed or self.wish.shut_down or _another_port(self))
        )
        known = self.verdict is not None and bool(self.verdict.follows)  # it came along to another node: contrast has spoken
        by_policy = self.settings.retry.policy == "Evidence" and self.settings.unconditional_requeue.enabled and not known
        spent = len(self.history.crashes.left) >= self.settings.unconditional_requeue.in_a_row
        not_here = self.series.times > 1 or bool(self.not_in_place) or (self.verdict is not None and self.verdict.setup)
        return self.series.suspect if wanted and by_policy and not_here and not spent else ""

    @property
    def leaving(self) -> frozenset[str]:
        """Nodes of the step in whose place the next attempt has others."""
        return frozenset(self.blamed) or frozenset({self.experiment} - {""})

    @property
    def standing(self) -> int:
        """Nodes of the step that nothing speaks against."""
        return len(self.step - self.blamed.keys())

    @property
    def size(self) -> int:
        """Nodes with which the job is scheduled again: as many as it had before some were lost or given back (seen on 22.05)."""
        return max(self.slurm.node_count if self.slurm else 0, self.history.slots.size)

    @property
    def least(self) -> int:
        """Nodes without which Slurm does not start the job again."""
        return (self.slurm.least if self.slurm else 0) or self.size

    @property
    def idle(self) -> frozenset[str]:
        """Nodes outside of the job that fit it, run nothing now, and are not kept out."""
        if self.slurm is None:
            return frozenset()
        return self.slurm.idle - (self.slurm.excluded - self.history.exclusions.ours) - self.kept_out.keys()

    @property
    def fits(self) -> bool | None:
        """Slurm's word: could the job ever start without the nodes kept out? None: it has none."""
        return self.slurm.fits if self.slurm and self.slurm.without == self.kept_out.keys() else None

    @property
    def usable(self) -> frozenset[str] | None:
        """Nodes that the job could run on but for our exclusions, None if not known. The user's own (`--exclude`) stay."""
        if self.slurm is None or self.slurm.usable is None:
            return None
        return self.slurm.usable - (self.slurm.excluded - self.history.exclusions.ours)

    @property
    def known_dead(self) -> frozenset[str]:
        """Of the nodes kept out, those that are dead now, or were when they were left and Slurm may not have noticed."""
        kept_out = self.kept_out
        before = {node for node in self.history.exclusions.dead & kept_out.keys() if self.now - kept_out[node] < SLURM_KNOWS_S}
        return frozenset(before | (self.dead & kept_out.keys()))

    @property
    def never(self) -> frozenset[str]:
        """Of the nodes kept out, those that the job is not let in again for want of others: dead ones, and those that people
        exclude."""
        return self.known_dead | (self.history.control.excluded & self.kept_out.keys())

    @property
    def willed(self) -> bool:
        """Is it no failure, but what the owner of the job wants?"""
        return self.cause is Cause.REQUEST

    @property
    def kept_out(self) -> dict[str, float]:
        """node -> since when (Unix seconds), of those isolated and those blamed now."""
        before = self.history.kept_out(self.now, self.settings.isolation.expires_s)
        return {node: self.history.exclusions.isolated[node][1] for node in before} | dict.fromkeys(self.bad, self.now)


class _Answer(Value):
    """A rung's answer: `yes` or not, and why. fits: is it meant for such a trouble at all? limit: the setting by which people may
    raise the limit that `why` names. off: is the rung switched off?"""

    yes: bool
    why: str
    fits: bool = True
    limit: str = ""
    off: bool = False


class _Row(Value):
    """One line of the table."""

    rung: Rung
    allowed: Callable[[Situation], _Answer]
    budget: Budget | None = None
    pays: Callable[[Situation], bool] = lambda _: False  # is `budget` charged for it?

    def answer(self, s: Situation) -> _Answer:
        if s.alone is not None and self.rung not in (Rung.RANK_RESTART, Rung.FAIL):
            return _not_meant("only one rank failed; the others still run")
        return self.allowed(s)

    def cost(self, s: Situation) -> str:
        """The budget it is taken from, or empty."""
        return self.budget.value if self.budget is not None and self.pays(s) else ""


class Choice(Value):
    """The rung that answers. passed: each rung asked before it and why it was not taken. Where nothing answers, `why` is the
    reason of the last rung that is meant for such a trouble and switched on; the first, if all of them are off.

    settings: (rung, setting, value in words), what each rung that was asked looked at, this one last. limit: the setting by which
    people may raise the limit that `why` names; empty if it names none."""

    rung: Rung
    why: str
    cost: str
    passed: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str, str], ...] = ()
    limit: str = ""

    @property
    def remedy(self) -> RungRemedy:
        return self.rung.remedy


def choose(situation: Situation) -> Choice:
    """The first rung, in the order of the policy's ladder, that is switched on, fits and can be paid."""
    passed: list[tuple[str, str]] = []
    read: list[tuple[str, str, str]] = []
    decisive = _NO_RESTARTS if situation.settings.max_job_restarts == 0 else None
    for rung in map(Rung, (*situation.settings.ladder, Rung.FAIL)):
        if rung is Rung.RANK_RESTART and situation.settings.mode not in ALONE:
            continue  # of another kind of job: not worth a word in every history
        row, noted = LADDER[rung], noting(situation.settings)
        s = replace(situation, settings=noted)
        answer = _wanted(rung, _getting_on(rung, _within_job_restarts(rung, row.answer(s), s), s), situation)
        read += [(rung.value, name, value) for name, value in read_of(noted)]
        if answer.yes and (held := situation.history.control.why_held(rung)):
            answer = _no(held)
        if answer.yes and s.others.not_again and rung not in _ENDS_THIS_FTRUN:
            answer = _no(s.others.not_again)
        if answer.yes:
            told = decisive if decisive and rung is Rung.FAIL else answer
            return Choice(rung, told.why, row.cost(situation), tuple(passed), tuple(read), told.limit)
        passed.append((rung.value, answer.why))
        if answer.fits and not answer.off:
            decisive = answer
        elif answer.fits:
            decisive = decisive or _no(f"{rung} is switched off")
    raise AssertionError("`fail` is always allowed")


# --- guards


def _off(fits: bool = True) -> _Answer:
    return _Answer(False, "switched off", fits, off=True)


def _no(why: str, limit: str = "") -> _Answer:
    return _Answer(False, why, limit=limit)


_NO_RESTARTS = _no("no restart is allowed (max_job_restarts 0)", "max_job_restarts")


def _no_if(why: str) -> _Answer | None:
    return _no(why) if why else None


def _not_meant(why: str) -> _Answer:
    """The rung is for another kind of trouble."""
    return _Answer(False, why, fits=False)


def _within_job_restarts(rung: Rung, answer: _Answer, s: Situation) -> _Answer:
    """AIMaster's count: whatever the rung, all ranks start again. A port that we have chosen is our own affair.

    Once it is used up, that is the reason, whatever else a rung that is switched on has against it.
    """
    meant = answer.yes or (answer.fits and not answer.off)
    if s.willed or not meant or rung not in RESTARTS:
        return answer
    limit = s.settings.max_job_restarts
    if limit < 0 or s.history.budgets.job_restarts < limit:
        return answer
    if rung is Rung.IN_PLACE_RESTART and _another_port(s):
        return answer
    return _no(f"the job has used its {counted(limit, 'restart')} (max_job_restarts)", "max_job_restarts")


def _getting_on(rung: Rung, answer: _Answer, s: Situation) -> _Answer:
    """ft_launcher's progress tracker: whatever the rung, all ranks start again, and have come no further for too long."""
    return _no(_no_progress(s)) if answer.yes and rung in RESTARTS and not s.willed and _no_progress(s) else answer


def _wanted(rung: Rung, answer: _Answer, s: Situation) -> _Answer:
    """Does whoever called ftrun want a remedy? Faults of devices and nodes have one all the same."""
    if not answer.yes or s.willed or rung is Rung.FAIL:
        return answer
    if s.settings.plain:
        return _no("--ft-plain: the step is supervised, and nothing is started again")
    if is_answer(s) or (s.wish.call.reading is Reading.DOUBT and rung is Rung.UNCONDITIONAL_REQUEUE and on_words(s)):
        return _no(s.wish.call.words)
    return answer


def on_words(s: Situation) -> bool:
    """Is there nothing but the end of ranks, and what they said?"""
    return s.cause in (Cause.CRASH, Cause.HARDWARE, Cause.UNSTARTABLE) and not s.proven


def is_answer(s: Situation) -> bool:
    """Did the script only want to know the status?"""
    return s.wish.call.reading is Reading.ANSWER and on_words(s)


def _no_progress(s: Situation) -> str:
    """Empty while there is some, or nobody wants to know."""
    if not s.settings.progress.file:
        return ""
    limit = s.settings.progress.attempts
    if not limit or s.history.progress.in_vain < limit:
        return ""
    in_vain = f"{counted(s.history.progress.in_vain, 'attempt')} in a row without progress"
    return f"{in_vain}: {s.settings.progress.file} says {s.history.progress.iteration}"


def status_of_failure(s: Situation) -> int:
    """What ftrun ends with when nothing is left to be done. A program's own status is not taken for no_restart_status."""
    for_good = bool(_no_progress(s)) or (s.settings.retry.policy == "Evidence" and bool(s.verdict and _proven(s, s.verdict)))
    status = s.settings.no_restart_status
    if not status:
        return s.status
    return status if for_good else 1 if s.status == status else s.status


def _rank_alone(s: Situation) -> _Answer:
    if s.settings.mode not in ALONE:
        return _not_meant("the ranks are not independent (mode sync)")
    if s.alone is None:
        return _not_meant("it is not the failure of a single rank")
    if s.cause is not Cause.CRASH:
        return _not_meant("a device or node is behind it")
    once = s.settings.mode == "independent"
    limit = s.settings.in_place_restart.crash_restarts if once else s.settings.rank_restart.in_a_row
    if once and not limit:
        return _no("crash_restarts is 0")
    if s.alone.in_a_row >= limit:
        return _no(
            f"{counted(limit, 'restart')} of rank {s.alone.rank} alone{'' if once else ' in a row'} {_have(limit)} not helped"
        )
    return _hopeless(s) or _Answer(True, "the ranks are independent")


def _in_place(s: Situation) -> _Answer:
    if not s.settings.in_place_restart.enabled:
        return _off(s.cause in _FAULTS)
    if s.cause is Cause.HARDWARE:
        return _error_that_heals(s)
    if s.cause in _FAULTS:
        if reason := _degraded(s) or _elsewhere(s):
            return _no(reason)
        return _no(s.not_in_place) if s.not_in_place else _Answer(True, "the fault is one that heals")
    if _another_port(s):
        return _no(s.not_in_place) if s.not_in_place else _Answer(True, f"port {s.port_taken}, which we chose, was taken")
    if s.cause is Cause.CRASH and s.settings.in_place_restart.crash_restarts:
        return _crash_in_place(s)
    return _not_meant("no device fault that heals")


def _another_port(s: Situation) -> bool:
    """Is it our own doing? Not for ever: what takes every port that we choose is something else."""
    ours = s.cause is Cause.CRASH and bool(s.port_taken) and not s.wish.shut_down
    return ours and s.history.verdicts.same_in_a_row <= PORTS_IN_A_ROW


def _error_that_heals(s: Situation) -> _Answer:
    """A device error that a rank printed and that a restart of the processes may answer; too often, and a node is blamed."""
    if s.verdict is None or not s.verdict.heals:
        return _not_meant("no device error that a restart heals")
    if s.blamed:
        return _no("; ".join(f"{node}: {why}" for node, why in s.blamed.items()))
    since, limit = s.now - s.settings.in_place_restart.same_code_window_s, s.settings.in_place_restart.same_code_limit
    often = {suspect.node for suspect in s.verdict.suspects if s.history.verdicts.suspected(suspect.node, since) >= limit}
    if often or s.history.verdicts.same_in_a_row >= limit:
        return _no(f"it has come back {counted(limit, 'time')}, and a restart has not healed it")
    return _no(s.not_in_place) if s.not_in_place else _Answer(True, "the error is one that a restart heals")


def _hopeless(s: Situation) -> _Answer | None:
    """Why another try of the same cannot help, or may not be made; None if it may. Source: AIMaster for the limits."""
    policy, v = s.settings.retry.policy, s.verdict
    if s.wish.shut_down:
        return _no(f"the program asked to end the job: {s.wish.shut_down}")
    if policy == "Never":
        return _no("retry.policy is Never")
    return None if v is None else _limited(s, v) or _no_if(_not_called_for(s, v, policy))


def _limited(s: Situation, v: Verdict) -> _Answer | None:
    """AIMaster's: the same error of one rank too often, too large a share of the ranks failed."""
    st, before = s.settings, s.history.verdicts
    if st.retry.same_error:
        for rank in before.last.ranks if before.last else ():
            if (times := before.errors.get((rank, v.signature), 0)) > st.retry.same_error:
                told = f"{v.signature} {counted(times, 'time')} on rank {rank}, {st.retry.same_error} are allowed"
                return _no(f"{told} (retry.same_error)", "retry.same_error")
    failed = len(before.failed_ranks)
    if st.retry.failure_rate >= 0 and s.tasks and failed > st.retry.failure_rate * s.tasks:
        told = f"{failed} of {s.tasks} ranks have failed, {st.retry.failure_rate:g} is allowed"
        return _no(f"{told} (retry.failure_rate)", "retry.failure_rate")
    return None


def _not_called_for(s: Situation, v: Verdict, policy: str) -> str:
    if policy == "OnFailure" or v.retriable is Retriable.YES:
        return ""
    if policy == "ExitCodeAndErrorMsg":
        if v.retriable is Retriable.ONCE and s.history.verdicts.same_in_a_row <= 1:
            return ""
        return f"neither exit status nor output calls it retriable ({v.signature}; retry.policy ExitCodeAndErrorMsg)"
    return _by_contrast(s) or _proven(s, v)


def _by_contrast(s: Situation) -> str:
    again = s.cause is Cause.CRASH and s.series.elsewhere
    return f"running it again cannot help: {s.series.elsewhere}: the fault is in the program, not in a node" if again else ""


def _proven(s: Situation, v: Verdict) -> str:
    """What has come again on one node is proven only if no other node can be tried."""
    why = _repeated(s, v)
    return "" if why and s.history.verdicts.same_in_a_row > 1 and _other_node_first(s) else why


def _other_node_first(s: Situation) -> bool:
    """Can an experiment be made now?"""
    rungs = [rung for rung in (Rung.NODE_REPLACEMENT, Rung.ISOLATED_REQUEUE) if rung in s.settings.ladder]
    return bool(s.experiment) and any(LADDER[rung].answer(s).yes for rung in rungs)


def _repeated(s: Situation, v: Verdict) -> str:
    """Certain are errors that all ranks agree on, and those that came back; a first one of one rank is tried again.

    What is only likely to be the program's own is certain when it has come back with the same words.

    What only one node's ranks said before the others were stopped may be that node's setup; said next by another node's
    (the same one twice is to blame), it is the program's.
    """
    wanted = v.retriable is Retriable.NO or (v.retriable is Retriable.ONCE and not s.blamed)
    if v.confidence is Confidence.WEAK and v.retriable is Retriable.NO:
        return _said_again(s, v)
    if not wanted or v.confidence not in (Confidence.STRONG, Confidence.FACT):
        return ""
    tries = v.confirm if v.program or len(s.step) == 1 else max(1, v.confirm)
    if s.history.verdicts.same_in_a_row <= tries:
        return ""
    again = f", {s.history.verdicts.same_in_a_row} times in a row" if s.history.verdicts.same_in_a_row > 1 else ""
    where = f" follows {v.follows}" if v.follows else " on most ranks" if v.program and s.tasks > 1 else ""
    return f"running it again cannot help: {v.signature}{where}{again}"


# A program that ends itself with the same words so often, each time on the same rank of the same node.
SAME_WORDS = 3


def _said_again(s: Situation, v: Verdict) -> str:
    """A weak `no` is proven by contrast: the same words again, without progress between, on every rank, or on another rank or
    node. On one rank of one node once more: it may be that node's set-up, and Slurm mostly gives the same nodes again."""
    history = s.history
    elsewhere = history.verdicts.moved or v.program
    if history.verdicts.same_words < (2 if elsewhere else SAME_WORDS):
        return ""
    where = " on most ranks" if v.program and s.tasks > 1 else " on other ranks or nodes" if history.verdicts.moved else ""
    return f"running it again cannot help: {v.signature} with the same words{where}, {history.verdicts.same_words} times in a row"


def _crash_in_place(s: Situation) -> _Answer:
    if refused := _hopeless(s):
        return refused
    if s.verdict is not None and s.settings.retry.policy == "Evidence" and (reason := _repeated(s, s.verdict)):
        return _no(reason)
    if s.verdict is not None and s.verdict.setup and _other_node_first(s):
        return _no(f"the set-up of {s.experiment} may be wrong, and another node can be tried")
    in_a_row, limit = s.series.in_place, s.settings.in_place_restart.crash_restarts
    if in_a_row >= limit:
        return _no(_all_spent(limit, "restart", " in place after a crash"))
    most = most_crash_restarts(s.settings)
    if s.history.budgets.spent.get(Budget.CRASH_RESTARTS, 0) >= most:
        return _no(_all_spent(most, "restart", " in place after a crash in the whole job"))
    return (
        _no(s.not_in_place)
        if s.not_in_place
        else _Answer(True, f"crash {in_a_row + 1} of {limit} answered in place{_although(s, '; ')}")
    )


def _degraded(s: Situation) -> str:
    """Why a device fault cannot be healed in place, or nothing."""
    if s.unhealed:
        return "healing failed: " + "; ".join(f"{node}: {why}" for node, why in sorted(s.unhealed.items()))
    for fault in s.faults:
        if fault.fault_class is FaultClass.ISOLATE:
            return f"{fault} does not heal"
    for fault in s.faults:
        if repeated(fault, s.history, s.settings.in_place_restart, s.now):
            window_s = s.settings.in_place_restart.same_code_window_s
            time = nth(s.history.fault_count(fault.key, s.now - window_s))
            return f"{fault.code} on device {fault.device} of {fault.node} for the {time} time in {window_s / 3600:g} h"
    return ""


def _elsewhere(s: Situation) -> str:
    """A node that is to blame for something else than a fault that heals."""
    others = s.blamed.keys() - {fault.node for fault in s.faults}
    return "; ".join(f"{node}: {s.blamed[node]}" for node in sorted(others))


def repeated(fault: Fault, history: History, codes: InPlaceRestartSettings, now: float) -> bool:
    """Same node, same device, same code, too often in the window (the present time counted)?"""
    return history.fault_count(fault.key, now - codes.same_code_window_s) >= codes.same_code_limit


def nth(number: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def _hang(s: Situation) -> _Answer:
    if s.settings.hang_restart.enabled is False:
        return _off(s.cause is Cause.HANG)
    if s.cause is not Cause.HANG:
        return _not_meant("no hang")
    without_it = [rung for rung in LEAVES if rung in s.settings.ladder]
    if s.blamed and any(LADDER[rung].answer(s).yes for rung in without_it):
        return _no("a node is to blame, and the job can continue without it")
    if s.history.hangs.in_a_row >= (limit := s.settings.hang_restart.in_a_row):
        return _no(f"{counted(limit, 'hang restart')} in a row {_have(limit)} not helped")
    return _no(s.not_in_place) if s.not_in_place else _Answer(True, "a hang that no hardware fault explains")


def _replace(s: Situation) -> _Answer:
    if not s.leaving:
        return _Answer(False, _nobody(s), fits=bool(s.spared))
    if not s.settings.node_replacement.enabled:
        return _off(fits=False)
    answer = _another_node_here(s)
    return answer if s.blamed else _experiment(s, answer)


def _another_node_here(s: Situation) -> _Answer:
    if reason := _not_swappable(s) or s.others.unreplaced:
        return _no(reason)
    if s.others.spares:
        return _Answer(True, f"{counted(s.others.spares, 'spare node')} left")
    if not s.settings.nodes.donor:
        return _no("no spare node is left (nodes.donor is off)")
    if s.others.no_donor:
        return _no(f"no spare node is left, and none can be borrowed: {s.others.no_donor}")
    return _Answer(True, "a node can be borrowed")


def _experiment(s: Situation, answer: _Answer) -> _Answer:
    """The answer of a rung by which the job gets another node, where that is an experiment: nobody is to blame."""
    if not answer.yes:
        return _Answer(False, _nobody(s) if s.spared else answer.why, fits=bool(s.spared))
    return _Answer(True, f"an experiment without {s.experiment}, where it failed {how_often(s.series.times)}: {answer.why}")


def _not_swappable(s: Situation) -> str:
    """What a replacement and a smaller step have in common."""
    if Capability.REPLACE not in s.can:
        return s.others.no_swap or "the launcher cannot replace a node in a running job"
    if s.others.no_swap:
        return s.others.no_swap
    if s.others.unended:
        return s.others.unended
    if not s.leaving & s.step:
        return "no rank runs on a node that is to blame"
    if s.cause is Cause.HANG and s.history.hangs.in_a_row >= s.settings.hang_restart.in_a_row:
        return _hangs_in_vain(s)
    used, limit = s.history.budgets.spent.get(Budget.NODE_REPLACEMENTS, 0), s.settings.node_replacement.budget
    return _all_spent(limit, "node replacement") if used >= limit and not s.willed else ""


def _all_spent(limit: int, noun: str, which: str = "") -> str:
    """A budget that nothing is left of. which: words behind the noun."""
    return f"the {limit} {noun}{which} is spent" if limit == 1 else f"all {limit} {noun}s{which} are spent"


def _hangs_in_vain(s: Situation) -> str:
    limit = s.settings.hang_restart.in_a_row
    return f"{counted(limit, 'answer')} to hangs in a row {_have(limit)} not helped"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _shrink(s: Situation) -> _Answer:
    if not s.blamed:
        return _Answer(False, _nobody(s), fits=bool(s.spared))
    if not (s.settings.shrink.enabled and s.settings.nodes.min):
        return _off(fits=False)
    if reason := _not_swappable(s):
        return _no(reason)
    if s.standing < s.settings.nodes.min:
        return _no(f"only {counted(s.standing, 'node')} would remain, and the job needs {s.settings.nodes.min} (nodes.min)")
    return _Answer(
        True, f"{s.standing} of {counted(len(s.step), 'node')} remain, which is enough (nodes.min {s.settings.nodes.min})"
    )


def _nobody(s: Situation) -> str:
    """Why no node is to blame, in words."""
    return "; ".join(f"{node}: {why}" for node, why in sorted(s.spared.items())) or "no node is to blame"


def _isolated(s: Situation) -> _Answer:
    if s.experiment:
        return _experiment(s, _elsewhere_now(s))
    if not s.blamed:
        return _Answer(False, _nobody(s), fits=bool(s.spared))
    if not s.settings.isolated_requeue.enabled:
        return _off()
    if s.cause is Cause.HANG and s.history.hangs.in_a_row >= s.settings.hang_restart.in_a_row:
        return _no(_hangs_in_vain(s))
    if refused := _not_requeueable(s) or _no_if(_too_few_left(s)):
        return refused
    return _Answer(True, "without " + ", ".join(sorted(s.blamed)))


def _elsewhere_now(s: Situation) -> _Answer:
    """Can a requeue without the node start at once? An experiment waits for no node."""
    if not s.settings.isolated_requeue.enabled:
        return _off()
    if refused := _not_requeueable(s):
        return refused
    idle = sorted(s.idle - s.step)
    return _Answer(True, f"{idle[0]} is idle") if idle else _no("no other node that fits is idle now")


def _unconditional(s: Situation) -> _Answer:
    if s.cause is Cause.UNSTARTABLE and s.settings.retry.policy != "OnFailure":
        return _no("the command cannot be executed on any node, so running it again cannot help")
    if s.cause is Cause.HANG:
        return _not_meant("a hang is answered in place, or ends the job")
    if s.cause is Cause.LAUNCH and not _came_up_before(s.history):
        return _no("the step never came up")
    if s.blamed:
        return _not_meant("a node is to blame, and would be used again")
    if s.willed:
        return _not_meant("nothing has failed")
    if s.cause is Cause.CRASH and (refused := _hopeless(s)):
        return refused
    # A user-induced device fault is rescheduled without blaming the node (ModelArts); the automatic restart pays for
    # that, so it holds even where the unconditional one is switched off. In a row it counts as the program's other failures.
    if not (s.settings.unconditional_requeue.enabled or (s.cause in _FAULTS and s.settings.isolated_requeue.enabled)):
        return _off()
    limit = s.settings.unconditional_requeue.in_a_row
    if s.cause is not Cause.DEVICE and s.history.requeues.unconditional_in_a_row >= limit:
        between = "no progress, device or node fault between"
        untried = f", or in {s.experiment}: no other node was free to try" if s.experiment else ""
        return _no(f"{counted(limit, 'unconditional requeue')} in a row, {between}: the fault is in the program{untried}")
    if refused := _not_requeueable(s) or _no_if(_too_few_alive(s)):
        return refused
    although = _although(s)
    return _Answer(True, although) if although else _Answer(True, "no node is to blame")


def _although(s: Situation, joint: str = "") -> str:
    """Why another try is made that the verdict calls useless."""
    if s.verdict is None or s.verdict.retriable is not Retriable.NO or s.cause is not Cause.CRASH:
        return ""
    by_policy = s.settings.retry.policy == "OnFailure"
    return f"{joint}{'retry.policy is OnFailure' if by_policy else 'once more, to see whether it fails the same way'}"


def _came_up_before(history: History) -> bool:
    """This very step, in an earlier scheduling: then it is this allocation that lacks something. Slurm before 23.02.2 may leave
    the GPUs out of one (docs/slurm-facts.md, "How long a clean-up takes")."""
    last = history.last_run
    return last is not None and any(key == last.step_key and schedule < last.schedule for schedule, key in history.slots.starts)


def _not_requeueable(s: Situation) -> _Answer | None:
    used, limit = s.history.budgets.spent.get(Budget.MAX_RESTARTS, 0), s.settings.max_restarts
    if used >= limit and not s.willed:
        why = _all_spent(limit, "requeue", " (max_restarts)") if limit else "max_restarts 0 allows no requeue"
        return _no(why, "max_restarts")
    if Capability.REQUEUE not in s.can:
        return _no(s.others.no_requeue or "only a batch job can be requeued")
    if s.slurm is None or s.slurm.error:
        return _no(f"Slurm did not say how the job stands: {s.slurm.error if s.slurm else 'not asked'}")
    if not s.slurm.batch:
        return _no("only a batch job can be requeued")
    if not s.slurm.requeueable and not s.settings.requeue.even_if_no_requeue:
        return _no("the job may not be requeued (submit with `sbatch --requeue`)")
    return None


def _too_few_left(s: Situation) -> str:
    """Too many exclusions leave a job pending for ever, so Slurm is asked first, and those that would remain are counted where it
    does not tell."""
    kept_out = s.kept_out
    excluded = f"{', '.join(sorted(kept_out))} {'is' if len(kept_out) == 1 else 'are'} excluded"
    if s.fits is not None or s.usable is None:
        return f"Slurm could never start the job if {excluded}" if s.fits is False else ""
    left = len(s.usable - kept_out.keys())
    if left >= s.least:
        return ""
    return f"the job needs {counted(s.least, 'node')} and {_only(left)} if {excluded}"


def _only(left: int) -> str:
    return f"only {left} remain{'s' if left == 1 else ''}"


def _too_few_alive(s: Situation, without: Collection[str] = ()) -> str:
    """Could it start even if every node were let in that lives? without: nodes that are to be excluded besides."""
    if s.usable is None:
        return ""
    never = (s.never | {*without}) & s.usable
    left = len(s.usable - never)
    if not never or left >= s.least or (s.fits and s.kept_out.keys() >= {*without}):
        return ""
    why = "known dead" if never <= s.known_dead else "dead or excluded"
    return f"the job needs {counted(s.least, 'node')} and {_only(left)} without {', '.join(sorted(never))} ({why})"


def let_in(s: Situation) -> tuple[str, ...]:
    """Nodes without which a requeued job could never start: as few as need be, those kept out the longest first. None that is
    known dead: Slurm may not know it yet, and would start the job there. None that people exclude."""
    if s.usable is None or s.fits:
        return ()
    kept_out = s.kept_out
    alive = kept_out.keys() - s.never
    oldest = sorted(alive & s.usable, key=lambda node: (kept_out[node], node))
    return tuple(oldest[: max(0, s.least - len(s.usable - kept_out.keys()))])


def _fail(s: Situation) -> _Answer:
    return _Answer(True, "nothing above applies")


# --- the table


def _unasked(s: Situation) -> bool:
    """What the owner of the job asks for costs nothing."""
    return not s.willed


def why_no_requeue(s: Situation, without: Collection[str]) -> str:
    """Why the job cannot be requeued because its owner asks for that, without these nodes; empty if it can."""
    refused = _not_requeueable(s)
    return refused.why if refused else _too_few_alive(s, without)


LADDER: Mapping[Rung, _Row] = {
    row.rung: row
    for row in (
        _Row(Rung.RANK_RESTART, _rank_alone),
        _Row(Rung.IN_PLACE_RESTART, _in_place, Budget.CRASH_RESTARTS, lambda s: s.cause is Cause.CRASH and not _another_port(s)),
        _Row(Rung.HANG_RESTART, _hang),
        _Row(Rung.NODE_REPLACEMENT, _replace, Budget.NODE_REPLACEMENTS, _unasked),
        _Row(Rung.SHRINK, _shrink, Budget.NODE_REPLACEMENTS, _unasked),
        _Row(Rung.ISOLATED_REQUEUE, _isolated, Budget.MAX_RESTARTS, _unasked),
        _Row(Rung.UNCONDITIONAL_REQUEUE, _unconditional, Budget.MAX_RESTARTS, _unasked),
        _Row(Rung.FAIL, _fail),
    )
}
