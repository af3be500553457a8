"""A failure trace: the job, the cluster it runs in, and what goes wrong at what time. Values, reading, and traces that are made.

Times in seconds; `at` counts from the first start of the job. Nodes are counted from 1: those of the job first, then the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from random import Random
from typing import Any

from ftslurm.config.settings_files import read_yaml
from ftslurm.errors import PolicyError, UsageError
from ftslurm.model.devices import Fault as DeviceFault
from ftslurm.model.settings.kinds import choice, count, lasting, suggestion, switch, value_of
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import MISSING, Value, field, fields, replace
from ftslurm.model.verdict import Confidence, ErrorClass, Retriable


class FaultKind(str, Enum):
    """What goes wrong."""

    DEVICE = "device"  # a fault code on a device of a node
    CRASH = "crash"  # a rank exits with an error
    HANG = "hang"  # the ranks make no more progress
    NODE_DEATH = "node-death"  # a node loses its power or its kernel
    PREEMPTION = "preemption"  # Slurm takes the nodes away, with a warning or without, and requeues the job
    REQUEUE = "requeue"  # a person or a site's tool gives the job back to Slurm


def setting(default: Any, what: str, source: str = "") -> Any:
    """A field of JobPlan. what: the help. source: where the default comes from; empty: it is a plain assumption."""
    return field(default=default, metadata={"what": what, "source": source})


class JobPlan(Value):
    """The job, its cluster and how long things take there."""

    nodes: int = setting(1, "nodes that ranks run on; nodes.spares of a policy come on top")
    tasks_per_node: int = setting(1, "tasks on each node")
    other_nodes: int = setting(0, "further nodes of the cluster, free to become spares, loans or replacements")
    until_s: float = setting(0.0, "how long the trace is; 0: one day after its last fault")
    work_s: float = setting(0.0, "training time after which the job is complete; 0: it trains until the end of the trace")
    step_s: float = setting(10.0, "one training step")
    checkpoint_s: float = setting(1800.0, "training time between two checkpoints; a restart begins at the last one")
    save_s: float = setting(0.0, "how long a checkpoint stops the training")
    saves_on_signal: bool = setting(False, "does the program save when it is warned by SIGTERM?")
    program_start_s: float = setting(60.0, "from the start of the ranks to their first step")
    launch_s: float = setting(0.39, "from the request for the step to its tasks", "`ftrun true`, 4 nodes")
    stop_s: float = setting(0.036, "from the order to stop to the proof that no process is left", "restart in place")
    diagnosis_s: float = setting(0.39, "the verdict on a failure", "verdict on 1,000 ranks")
    requeue_s: float = setting(6.0, "from ftrun's requeue to the next start of the script", "requeue, quiet machine")
    plain_requeue_s: float = setting(122.0, "from a requeue without ftrun to the next start", "plain `scontrol requeue`")
    borrow_s: float = setting(1.3, "until a donor job lends a free node", "its chip breaks, and no spare is there")
    node_known_s: float = setting(1.1, "from silence to the proof that a node is dead", "a node of four loses its power")
    slurmd_timeout_s: float = setting(300.0, "until Slurm itself marks a dead node down", "SlurmdTimeout")
    slurm_s: float = setting(0.05, "an answer of slurmctld")
    device_look_s: float = setting(10.0, "from one look of an agent at its devices to the next")
    heal_s: float = setting(5.0, "until a device that heals has healed")
    device_crash_s: float = setting(60.0, "until the ranks of a node with a device fault exit, if nobody has stopped them")
    repair_s: float = setting(86400.0, "until a dead node, or one with a fault that does not heal, is repaired")
    person_s: float = setting(28800.0, "until a person requeues a job that hangs and that nothing restarts")
    probe: bool = setting(True, "do the ranks show their collectives (Python with torch, JAX or mpi4py; hang.watch)?")

    @property
    def cluster(self) -> int:
        return self.nodes + self.other_nodes


class Real(Value):
    """What the ledger of a real job tells of a fault besides.

    after_s: the ranks had run for so long when it came; where they do not run at its time, it comes so long after their next
    start. outage: faults of the same one come together, those of another one after a start of the ranks. graded: a device's
    fault, for codes that no catalogue knows. noticed_s: until an agent saw that. suspect: the verdict suspects the node, but does
    not blame it.
    """

    after_s: float
    outage: int = 0
    graded: DeviceFault | None = None
    noticed_s: float = 0.0
    suspect: bool = False


class TraceFault(Value):
    """One thing that goes wrong."""

    at: float
    kind: FaultKind
    node: int = 0  # from 1, 0: where `rank` runs then
    rank: int = 0
    line: int = 0  # in its file, 0: in none; of a real job, its place in the trace, from 1
    # code, device, vendor, heals, for_s: of a device fault (heals None: as its class says); for_s also of a dead node, 0:
    # repair_s
    code: str = ""
    device: str = "0"
    vendor: str = ""
    heals: bool | None = None
    for_s: float = 0.0
    status: int = 1  # status, signal, error_class, retriable, confidence, signature, blames, program: of a crash and its verdict
    signal: int = 0
    error_class: ErrorClass = ErrorClass.UNKNOWN
    retriable: Retriable = Retriable.UNKNOWN
    confidence: Confidence = Confidence.WEAK
    signature: str = ""
    blames: bool = False
    program: bool = False
    network: bool = False  # the hang is inside a collective, and the connections of the node are stuck
    hangs_up: bool = False  # a node whose connections close when it dies, as they do where its kernel lives on
    # warning_s, wait_s: of a preemption, and wait_s of a requeue: how long the job waits in the queue besides
    warning_s: float = 0.0
    wait_s: float = 0.0
    real: Real | None = None  # of a fault that a real job had
    named: str = ""  # its node, where `node` stands for one that is not played


class Trace(Value):
    """faults: in the order of time. place: its name, for people. names: of the nodes, where they have some; the others are
    numbered. counts_end: is the time after a failure lost, until the end of the trace? requeue_seen: was `requeue_s` measured,
    with all that a start of this job had to wait for? ftrun_apart: does ftrun run on none of the nodes, as with the local
    launcher? alike: further nodes of the job that are not played (`with_few_nodes`). stop_at: no further
    fault is known from then on, so no further is it played; 0: to the end."""

    plan: JobPlan
    faults: tuple[TraceFault, ...] = ()
    place: str = ""
    names: tuple[str, ...] = ()
    counts_end: bool = True
    requeue_seen: bool = False
    ftrun_apart: bool = False
    alike: int = 0
    stop_at: float = 0.0

    @property
    def until(self) -> float:
        return self.plan.until_s or max((fault.at for fault in self.faults), default=0.0) + 86400.0


# --- reads a trace: YAML with `job:` and `faults:`, or JSON Lines, of which one is `{"job": {...}}` and each other one a fault
# Every mistake is told with file and line.

MOST_NODES, MOST_FAULTS, LONGEST_S = 100_000, 100_000, 10 * 365 * 86400.0
# What a fault of each kind may say, besides `at`, `kind`, `node` and `rank`.
_OF_DEVICE = ("code", "device", "vendor", "heals", "for")
_OF_CRASH = ("status", "signal", "class", "retriable", "confidence", "signature", "blames", "program")
SAYS: Mapping[FaultKind, tuple[str, ...]] = {
    FaultKind.DEVICE: _OF_DEVICE,
    FaultKind.CRASH: _OF_CRASH,
    FaultKind.HANG: ("network",),
    FaultKind.NODE_DEATH: ("for", "hangs_up"),
    FaultKind.PREEMPTION: ("warning", "wait"),
    FaultKind.REQUEUE: ("wait",),
}
# Names of a file that are others in the program.
_FIELDS = {"class": "error_class", "for": "for_s", "warning": "warning_s", "wait": "wait_s"}


def read_trace(text: str, place: str) -> Trace:
    """place: the file, for messages. Raises: PolicyError."""
    entries = list(_json_lines(text, place) if text.lstrip().startswith("{") else _yaml(text, place))
    jobs = [entry for entry in entries if entry[1] == "job"]
    if len(jobs) > 1:
        raise _wrong(place, jobs[1][0], "the job is here twice", "keep one")
    plan = plan_with(jobs[0][2], f"{place}, line {jobs[0][0]}") if jobs else JobPlan()
    faults = [_fault(tree, f"{place}, line {line}", line) for line, what, tree in entries if what == "fault"]
    if len(faults) > MOST_FAULTS:
        raise PolicyError(f"{place}: {len(faults)} faults; at most {MOST_FAULTS} can be simulated", hint="take a shorter time")
    return Trace(plan, tuple(sorted(faults, key=lambda fault: fault.at)), place)


Entry = tuple[int, str, Mapping[str, Any]]


def _json_lines(text: str, place: str) -> Iterator[Entry]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _wrong(place, number, f"not JSON: {getattr(error, 'msg', 'nested too deep')}") from None
        if not isinstance(tree, dict):
            raise _wrong(place, number, "a line of a trace is an object")
        if "job" in tree:
            yield number, "job", _mapping(tree["job"], place, number, "`job` is an object")
        else:
            yield number, "fault", tree


def _yaml(text: str, place: str) -> Iterator[Entry]:
    tree, lines = read_yaml(text, place, as_written=True)
    for name, value in _mapping(tree or {}, place, 1, "a trace has `job` and `faults`").items():
        line = lines[str(name)]
        if name == "job":
            yield line, "job", _plain(value, place, line)
        elif name == "faults":
            if not isinstance(value, list):
                raise _wrong(place, line, "`faults` is a list")
            for number, item in enumerate(value):
                line = lines[f"faults.{number}"]
                yield line, "fault", _plain(item, place, line)
        else:
            near = suggestion(str(name), ("job", "faults"))
            raise _wrong(place, line, f"`{name}` is not a part of a trace{near}", "a trace has `job` and `faults`")


def _plain(tree: Any, place: str, line: int) -> Mapping[str, Any]:
    """Every value is read as it is written: what it means is said by its name."""
    found = _mapping(tree, place, line, "names and values are wanted here")
    for name, value in found.items():
        if not isinstance(value, str):
            raise _wrong(place, line, f"`{name}` is one value")
    return found


def _mapping(value: Any, place: str, line: int, wanted: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(place, line, wanted)
    return value


def _wrong(place: str, line: int, what: str, hint: str = "correct it") -> PolicyError:
    return PolicyError(f"{place}, line {line}: {what}", hint=hint)


# --- values


def _seconds(value: Any) -> float:
    """A duration with its unit, or a number of seconds as JSON writes it."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    found = float(value) if number else lasting(value)
    if not 0 <= found <= LONGEST_S:
        raise ValueError(f"`{value}` is out of range for a time: 0 s to 10 years")
    return found


def _words(value: Any) -> str:
    text = str(value).strip()
    if not 0 < len(text) <= 128 or not text.isprintable():
        raise ValueError("a name of 1 to 128 printable characters is wanted")
    return text


def _one_of(members: type[Enum]) -> Callable[[Any], Enum]:
    """yes and no are true and false to YAML."""
    word = choice(*(str(member.value) for member in members))

    def parse(value: Any) -> Enum:
        said = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value).lower()
        return members(word(said))

    return parse


def _kind_of(default: Any) -> Callable[[Any], Any]:
    if isinstance(default, bool) or default is None:
        return switch
    if isinstance(default, Enum):
        return _one_of(type(default))
    if isinstance(default, float):
        return _seconds
    return _words if isinstance(default, str) else _NUMBER


_NUMBER = count(0, MOST_NODES * 64)
_RANGES = {"nodes": count(1, MOST_NODES), "tasks_per_node": count(1, 64), "other_nodes": count(0, MOST_NODES)}
_PLAN = {one.name.removesuffix("_s"): one for one in fields(JobPlan)}
_PLAN_KINDS = {name: _RANGES.get(name) or _kind_of(one.default) for name, one in _PLAN.items()}
_KIND = _one_of(FaultKind)
_FAULT_KINDS = {one.name: _kind_of(one.default) for one in fields(TraceFault) if one.default is not MISSING}
_ABOVE_NOTHING = ("step", "checkpoint", "device_look", "repair", "person")


def plan_words() -> list[tuple[str, str, str]]:
    """(name, default, what) of all that a job may say, for the reference."""
    from_s = {name: f" (measured: {one.metadata['source']})" if one.metadata["source"] else "" for name, one in _PLAN.items()}
    return [(name, _shown(one.default), one.metadata["what"] + from_s[name]) for name, one in _PLAN.items()]


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "true" if default else "false"
    return f"{default:g}s" if isinstance(default, float) else str(default)


def plan_with(tree: Mapping[str, Any], place: str, plan: JobPlan | None = None) -> JobPlan:
    """plan: what holds where `tree` says nothing. Raises: PolicyError."""
    found = {}
    for name, raw in tree.items():
        one = _PLAN.get(name)
        if one is None:
            raise PolicyError(f"{place}: the job has no `{name}`{suggestion(str(name), _PLAN)}", hint="correct the name")
        found[one.name] = _value(name, raw, _PLAN_KINDS[name], place)
        if name in _ABOVE_NOTHING and not found[one.name]:
            raise PolicyError(f"{place}: {name}: it takes some time", hint="write a duration such as 10s")
    return replace(plan or JobPlan(), **found)


def _fault(tree: Mapping[str, Any], place: str, line: int) -> TraceFault:
    for name in ("at", "kind"):
        if name not in tree:
            raise PolicyError(f"{place}: a fault needs `{name}`", hint="such as at: 2h, kind: crash")
    kind: FaultKind = _value("kind", tree["kind"], _KIND, place)
    found: dict[str, Any] = {"kind": kind, "at": _value("at", tree["at"], _seconds, place), "line": line}
    for name, raw in tree.items():
        if name in ("at", "kind"):
            continue
        if name not in SAYS[kind] and name not in ("node", "rank"):
            known = ("at", "kind", "node", "rank", *SAYS[kind])
            raise PolicyError(f"{place}: a fault of kind {kind.value} has no `{name}`{suggestion(str(name), known)}",
                              hint=f"it has {', '.join(known)}")  # fmt: skip
        field = _FIELDS.get(name, name)
        found[field] = _value(name, raw, _FAULT_KINDS[field], place)
    if kind is FaultKind.DEVICE and not found.get("code"):
        raise PolicyError(f"{place}: a device fault needs its `code`", hint="such as code: 80E01801, or code: Xid 79")
    if kind in (FaultKind.DEVICE, FaultKind.NODE_DEATH) and not found.get("node") and "rank" not in found:
        raise PolicyError(f"{place}: it does not say where", hint="node: 3 is a node of the cluster, rank: 5 where that runs")
    return TraceFault(**found)


def _value(name: str, raw: Any, kind: Callable[[Any], Any], place: str) -> Any:
    return value_of(kind, raw, f"{place}: {name}", hint="correct it")


# --- traces that are made: faults at a constant rate, and a job of very many nodes as one of few

# Nodes of the job to which nothing happens that are played at least; and free ones, beside two for each fault.
LEAST, FREE = 32, 8
# Faults of the first part of a trace; each part has so many times the faults of the one before.
FIRST, GROWS = 256, 10
# They take the whole job away and leave nothing behind on their node.
_PASSING = frozenset({FaultKind.PREEMPTION, FaultKind.REQUEUE})


def parts(trace: Trace) -> Iterator[Trace]:
    """Longer and longer beginnings of it, the whole at the end. Where the job ends in one of them, that is its end in the whole.
    Faults of a real job wait for their turn, so that they come together."""
    plan, most = replace(trace.plan, until_s=trace.until), FIRST
    while most < len(trace.faults) and not trace.names:
        yield replace(trace, plan=plan, faults=trace.faults[:most], stop_at=trace.faults[most].at)
        most *= GROWS
    yield trace


def with_few_nodes(trace: Trace, settings: Settings, apart: bool = False) -> Trace:
    """The same trace without most of the nodes to which nothing happens (`Trace.alike`): the others keep order and names. What
    heals, and comes too seldom to matter, happens to some of the former in turn, on devices of its own; apart: where it does."""
    plan = trace.plan
    lasting = [fault for fault in trace.faults if fault.kind not in _PASSING or fault.node > plan.nodes]
    often, limit = Counter(fault.node for fault in lasting), settings.in_place_restart.same_code_limit
    lasting = [one for one in lasting if apart or not one.heals or one.node > plan.nodes or often[one.node] >= limit]
    met = {1, *(fault.node for fault in lasting)}
    if trace.names or _counts_nodes(settings) or any(not fault.node and fault.rank for fault in trace.faults):
        return trace
    whole = plan.cluster + settings.nodes.spares
    mine = _filled(met, range(1, plan.nodes + 1), LEAST)
    others = _filled(met, range(plan.nodes + 1, whole + 1), 2 * len(lasting) + settings.nodes.spares + FREE)
    kept = (*mine, *others)
    if len(kept) == whole:
        return trace
    digits, place = len(str(whole)), {node: at for at, node in enumerate(kept, 1)} | {0: 0}
    alike = [place[node] for node in mine if node not in met]  # they stand for every node of the job that is not played
    turns = {node: at for at, node in enumerate(dict.fromkeys(fault.node for fault in trace.faults if fault.node not in place))}
    few = replace(plan, nodes=len(mine), other_nodes=len(others) - settings.nodes.spares)
    faults = tuple(
        replace(fault, node=place[fault.node])
        if fault.node in place
        else replace(fault, node=alike[turns[fault.node] % len(alike)], named=f"n{fault.node:0{digits}d}")
        for fault in trace.faults
    )
    names = tuple(f"n{node:0{digits}d}" for node in kept)
    return replace(trace, plan=few, faults=faults, names=names, alike=plan.nodes - len(mine))


def _filled(met: set[int], nodes: range, more: int) -> list[int]:
    """Of `nodes` those that are met, and the first `more` of the others."""
    mine = {node for node in met if node in nodes}
    others = [node for node in nodes[: more + len(mine)] if node not in mine]
    return sorted((*mine, *others[:more]))


def _counts_nodes(settings: Settings) -> bool:
    """Does a setting name a number or a share of nodes or ranks?"""
    return bool(settings.nodes.min or settings.nodes.min_healthy or settings.retry.failure_rate >= 0)


# --- random traces: faults that come at a constant rate, each on any node of the cluster. The same seed gives the same trace

# One typical fault of each kind. `device` heals; `broken-device` does not.
SAMPLES: Mapping[str, TraceFault] = {
    "device": TraceFault(0.0, FaultKind.DEVICE, code="80E01801", heals=True),
    "broken-device": TraceFault(0.0, FaultKind.DEVICE, code="Xid 79", vendor="nvidia", heals=False),
    "crash": TraceFault(0.0, FaultKind.CRASH),
    "bug": TraceFault(
        0.0, FaultKind.CRASH, error_class=ErrorClass.USER_CODE, retriable=Retriable.NO, confidence=Confidence.STRONG,
        signature="bug", program=True,
    ),
    "hang": TraceFault(0.0, FaultKind.HANG),
    "network-hang": TraceFault(0.0, FaultKind.HANG, network=True),
    "node-death": TraceFault(0.0, FaultKind.NODE_DEATH),
    "preemption": TraceFault(0.0, FaultKind.PREEMPTION),
    "requeue": TraceFault(0.0, FaultKind.REQUEUE),
}  # fmt: skip


def rate_of(text: str) -> tuple[str, float]:
    """`crash=0.002` -> kind and faults for each day of each node. Raises: UsageError."""
    name, _, number = text.partition("=")
    if name not in SAMPLES:
        raise UsageError(f"--random {text}: no such kind{suggestion(name, SAMPLES)}", hint=f"there are {', '.join(SAMPLES)}")
    try:
        rate = float(number)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1000:
        raise UsageError(f"--random {text}: a rate is a number of faults per node and day", hint=f"such as {name}=0.002")
    return name, rate


def random_trace(plan: JobPlan, rates: Sequence[tuple[str, float]], seed: int) -> Trace:
    """plan: with its `until_s`. Raises: UsageError for more faults than can be simulated."""
    random, days = Random(seed), plan.until_s / 86400.0
    faults: list[TraceFault] = []
    for name, rate in rates:
        whole = rate * plan.cluster
        if whole * days > MOST_FAULTS:
            raise UsageError(f"--random {name}={rate:g}: more than {MOST_FAULTS} faults", hint="take a lower rate, or less time")
        at = random.expovariate(whole) if whole else days
        while at < days:
            faults.append(replace(SAMPLES[name], at=at * 86400.0, node=random.randrange(plan.cluster) + 1))
            at += random.expovariate(whole)
    return Trace(plan, tuple(sorted(faults, key=lambda fault: fault.at)), f"random, seed {seed}")
