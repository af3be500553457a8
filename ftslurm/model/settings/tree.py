"""The settings tree: every value that can be set, its unit, range and default, and where it came from.

One table serves the policy file, FTRUN_* variables, `--ft-set` and `ftslurm explain`. Later layers win:
default, profile, site policy, job policy, annotations, environment, command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from ftslurm.errors import PolicyError
from ftslurm.model.rungs import RUNG_NAMES, Rung
from ftslurm.model.settings import features
from ftslurm.model.settings.kinds import (
    ALONE,
    Layer,
    Leaf,
    choice,
    count,
    how_to_correct,
    leaf,
    leaves_of,
    mode,
    suggestion,
    switch,
    table,
    text,
    value_in_words,
    value_of,
    words_of,
)
from ftslurm.model.values import Value, field, fields, is_dataclass, replace

# The kernel's own kill comes one second after the end of a lease (GUARD_S in shim/lease.py).
LEAST_MARGIN_S = 2.0
# Beats in the time after which a node counts as silent, and in that of a lease: one may be lost.
BEATS = 3


class Settings(Value):
    """Every value in force, one value a feature. Durations in seconds; 0 for `never` where a duration may be that.

    A setting has the name of its field, without the unit: `hang.stall` is `settings.hang.stall_s`. That of a rung has `rungs.`
    before it: `rungs.hang-restart.in_a_row` is `settings.hang_restart.in_a_row`.
    """

    ladder: tuple[str, ...] = leaf(words_of(*RUNG_NAMES), RUNG_NAMES)
    answers: bool = leaf(switch, True)
    tips: bool = leaf(switch, True)
    plain: bool = leaf(switch, False)
    mode: str = leaf(mode, "sync")
    max_restarts: int = leaf(count(0, 128), 8)
    max_job_restarts: int = leaf(count(-1, 1000), -1)
    fault_tolerance: str = leaf(table, "")
    no_restart_status: int = leaf(count(0, 255), 0)
    catalogs: tuple[str, ...] = leaf(words_of(), ())
    launcher: str = leaf(choice("auto", "srun", "local"), "auto")
    local_nodes: int = leaf(count(0, 4096), 0)
    restart_via: str = leaf(choice("shim", "step"), "shim")
    rendezvous: str = leaf(choice("none", "torch"), "none")
    python: str = leaf(text, "")

    rank_restart: features.RankRestartSettings = features.RankRestartSettings()
    in_place_restart: features.InPlaceRestartSettings = features.InPlaceRestartSettings()
    hang_restart: features.HangRestartSettings = features.HangRestartSettings()
    node_replacement: features.NodeReplacementSettings = features.NodeReplacementSettings()
    shrink: features.ShrinkSettings = features.ShrinkSettings()
    isolated_requeue: features.IsolatedRequeueSettings = features.IsolatedRequeueSettings()
    unconditional_requeue: features.UnconditionalRequeueSettings = features.UnconditionalRequeueSettings()
    retry: features.RetrySettings = features.RetrySettings()
    hang: features.HangSettings = features.HangSettings()
    sdk: features.SdkSettings = features.SdkSettings()
    stop: features.StopSettings = features.StopSettings()
    requeue: features.RequeueSettings = features.RequeueSettings()
    isolation: features.IsolationSettings = features.IsolationSettings()
    blame: features.BlameSettings = features.BlameSettings()
    warning: features.WarningSettings = features.WarningSettings()
    time_limit: features.TimeLimitSettings = features.TimeLimitSettings()
    preemption: features.PreemptionSettings = features.PreemptionSettings()
    checkpoint: features.CheckpointSettings = features.CheckpointSettings()
    progress: features.ProgressSettings = features.ProgressSettings()
    lease: features.LeaseSettings = features.LeaseSettings()
    nodes: features.NodesSettings = features.NodesSettings()
    devices: features.DevicesSettings = features.DevicesSettings()
    logs: features.LogsSettings = features.LogsSettings()
    notify: features.NotifySettings = features.NotifySettings()
    metrics: features.MetricsSettings = features.MetricsSettings()
    slurm: features.SlurmSettings = features.SlurmSettings()
    warm: features.WarmSettings = features.WarmSettings()

    @property
    def goes_on_after_warning(self) -> bool:
        """Does a warning of Slurm's, or ours before the time limit, end in a requeue?"""
        return self.warning.requeue or self.resumes_itself

    @property
    def resumes_itself(self) -> bool:
        """Is the job to be requeued before its time limit ends it?"""
        return self.time_limit.resume_s >= 0


def _leaves() -> Iterable[Leaf]:
    yield from leaves_of(Settings)
    for feature in fields(Settings):
        if not feature.metadata:
            rung = feature.name.replace("_", "-")
            prefix = f"rungs.{rung}." if rung in RUNG_NAMES else f"{feature.name}."
            yield from leaves_of(type(feature.default), prefix, (feature.name,))


LEAVES: Mapping[str, Leaf] = {leaf.name: leaf for leaf in _leaves()}


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with other values. values: name of a setting -> the checked value."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        *feature, field_ = LEAVES[name].path
        if feature:
            changes[feature[0]] = replace(changes.get(feature[0], getattr(settings, feature[0])), **{field_: value})
        else:
            changes[field_] = value
    return replace(settings, **changes)


def is_on(settings: Settings, rung: str) -> bool:
    """Is the rung switched on, at least for some cases (auto)? `fail` always is."""
    if rung == Rung.RANK_RESTART:
        return settings.mode in ALONE
    leaf = LEAVES.get(f"rungs.{rung}.enabled")
    return leaf is None or leaf.of(settings) in (True, None)


# Of one command in the whole job, whatever progress it makes between its crashes.
CRASH_RESTARTS_IN_ALL = 20


def most_crash_restarts(settings: Settings) -> int:
    """Crashes of one command that may be answered in place in the whole job."""
    in_a_row = settings.in_place_restart.crash_restarts
    most = max(in_a_row, CRASH_RESTARTS_IN_ALL) if in_a_row else 0
    return most if settings.max_job_restarts < 0 else min(most, settings.max_job_restarts)


class Resolved(Value):
    """Settings in force, and for each leaf the place its value came from. limits: leaf -> what the site allows, and its place."""

    settings: Settings
    places: Mapping[str, str]
    limits: Mapping[str, str] = field(default_factory=dict)


def resolve(layers: Iterable[Layer]) -> Resolved:
    """Lay the layers on the defaults, later ones on top. Raises: PolicyError naming the place and the mend."""
    values: dict[str, Any] = {}
    places = dict.fromkeys(LEAVES, "default")
    for layer in layers:
        for name, raw in layer.values.items():
            place = layer.places.get(name, "?")
            check_name(name, place)
            values[name] = parse_leaf(name, raw, place)
            places[name] = place
    _imply(_Given(values, places))
    settings = with_values(Settings(), values)
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

_REQUEUES = ("rungs.isolated-requeue.enabled", "rungs.unconditional-requeue.enabled")


class _Given:
    """What was set, and what follows from it."""

    def __init__(self, values: dict[str, Any], places: dict[str, str]) -> None:
        self.values, self.places = values, places

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name, LEAVES[name].default)

    def imply(self, name: str, value: Any, by: str) -> None:
        """Set it where nobody has; it comes from the place of the setting that implies it."""
        if self.places[name] == "default":
            self.values[name], self.places[name] = value, self.places[by]


def _imply(given: _Given) -> None:
    """A timeout for heartbeats or sections switches hang-restart on. Of a switch and its number each implies the other."""
    for number, switch_ in _SWITCHED_ON_BY.items():
        if given.values.get(number):
            given.imply(switch_, True, number)
    if "max_restarts" in given.values and not any(given[rung] for rung in _REQUEUES):
        # None is a requeue, so all restarts are counted, as ft_launcher's --max-restarts does.
        total, crashes = "max_job_restarts", "rungs.in-place-restart.crash_restarts"
        # Who allows restarts after crashes allows as many at least.
        given.imply(total, max(given["max_restarts"], given.values.get(crashes, 0)), "max_restarts")
        given.imply(crashes, max(0, given[total]), total)
    _imply_by_ft_config(given)
    _imply_replacements(given)
    if given["plain"]:
        given.values |= {"rungs.hang-restart.enabled": False, "warning.requeue": False}


def _imply_by_ft_config(given: _Given) -> None:
    """A rank that misses a timeout there is killed, and all start again. What is named there and nowhere else counts."""
    if not given["fault_tolerance"]:
        return
    import json

    keys = json.loads(given["fault_tolerance"])
    for key, name in _PROGRESS:
        if (value := keys.get(key)) is not None:
            given.imply(name, value if isinstance(value, str) else max(0, int(value)), "fault_tolerance")
    if any(keys.get(name) not in (None, "", "none", "null", "None", {}) for name in _TIMEOUTS):
        given.imply("rungs.hang-restart.enabled", True, "fault_tolerance")


def _imply_replacements(given: _Given) -> None:
    """Spare nodes switch node-replacement on, and nodes.min shrink; each needs a budget, and a budget of 0 switches off."""
    budget, replaces, shrinks = "rungs.node-replacement.budget", "rungs.node-replacement.enabled", "rungs.shrink.enabled"
    means = [("nodes.spares", replaces, given["nodes.spares"]), ("nodes.min", shrinks, _SHRINKS if given["nodes.min"] else 0)]
    for name, rung, worth in means:
        if worth:
            given.imply(rung, True, name)
    if worth := sum(worth for *_, worth in means):
        given.imply(budget, min(worth, 128), next(name for name, _, worth in reversed(means) if worth))
    for rung, worth in ((shrinks, _SHRINKS), (replaces, _REPLACEMENTS)):
        if given[rung]:
            given.imply(budget, worth, rung)
    if given[shrinks]:
        given.imply("nodes.min", _SHRUNK_LEAST, shrinks)
    if given[replaces] and not given[budget]:
        given.values[replaces], given.places[replaces] = False, given.places[budget]


_TIMEOUTS = (
    "initial_rank_heartbeat_timeout", "rank_heartbeat_timeout", "rank_section_timeouts", "rank_out_of_section_timeout",
)  # fmt: skip
# ft_launcher's keys for the same.
_PROGRESS = (
    ("checkpoint_iteration_file", "progress.file"), ("min_progress_iterations", "progress.iterations"),
    ("max_no_progress_cycles", "progress.attempts"),
)  # fmt: skip


def _check_lease(settings: Settings, places: Mapping[str, str]) -> None:
    """Raises: PolicyError for leases that would end ranks too soon, or save nobody."""
    lease, nodes = settings.lease, settings.nodes
    if not nodes.silence_s:
        raise PolicyError(f"{places['nodes.silence']}: nodes.silence 0 s: ftrun would miss no node", hint="leave it out for 15 s")
    # The last answer may have been lost: then the lease counts from the renewal before. Then come silence and the second proof.
    least_s = nodes.silence_s * (1 + 1 / BEATS) + nodes.probe_timeout_s + lease.margin_s
    if lease.time_s < least_s:
        raise PolicyError(
            f"{places['lease.time']}: lease.time {lease.time_s:g} s is below the minimum of {least_s:g} s"
            " (by nodes.silence, nodes.probe_timeout, lease.margin)",
            hint="make it several times nodes.silence",
        )
    if lease.margin_s < LEAST_MARGIN_S:
        raise PolicyError(
            f"{places['lease.margin']}: lease.margin {lease.margin_s:g} s leaves no time to kill in",
            hint=f"make it {LEAST_MARGIN_S:g}s or more",
        )


def check_name(name: str, place: str) -> None:
    """Raises PolicyError for an unknown setting, and suggests the nearest name."""
    if name in LEAVES:
        return
    if name.partition(".")[0] == "limits":
        raise PolicyError(f"{place}: limits count in the site's policy alone", hint="put them into /etc/ftslurm/policy.yaml")
    unknown = f"{place}: there is no setting `{name[:80]}`{suggestion(name, LEAVES)}"
    raise PolicyError(unknown, hint="`ftslurm explain` lists them all")


def parse_leaf(name: str, raw: Any, place: str) -> Any:
    """Raises: PolicyError when `raw` is no value for the leaf."""
    kind = LEAVES[name].kind
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


# --- settings as a ledger tells them: those that are not the default, and those that led to a decision

# Who is notified is nobody's business later, and may hold a secret. It decides nothing.
_PRIVATE = "notify."
# Is always told, so that a ledger that tells no policy differs from the default policy.
_ALWAYS = "max_restarts"


def as_policy(settings: Settings) -> dict[str, str]:
    """Name -> value, as a policy would have it. A value that cannot be written in one is left out."""
    found = {}
    for name, each in LEAVES.items():
        value = each.of(settings)
        if name == _ALWAYS or (value != each.default and not name.startswith(_PRIVATE)):
            written = next(
                (one for one in (value_in_words(each, value), f"{value!r}s", str(value)) if _says(name, one, value)), None
            )
            if written is not None:
                found[name] = written
    return found


def places_told(resolved: Resolved) -> dict[str, str]:
    """Name -> where it was set (`policy.yaml, line 4`, `--ft-max-restarts`), of what is told and was set at all."""
    return {name: resolved.places[name] for name in as_policy(resolved.settings) if resolved.places[name] != "default"}


def _says(name: str, text: str, value: Any) -> bool:
    try:
        return bool(parse_leaf(name, text, "") == value)
    except PolicyError:
        return False


def settings_told(values: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """The settings, and the names of those that this version does not understand. What one setting implies is told as well."""
    found, unknown = {}, []
    for name, written in values.items():
        try:
            found[name] = parse_leaf(name, written, "the ledger")
        except (KeyError, PolicyError):
            unknown.append(name)
    return with_values(Settings(), found), tuple(unknown)


# --- notes which settings a rule looks at, so that a decision can name what led to it


class _Noting:
    """Stands for the settings, or for those of a feature: gives what they give."""

    def __init__(self, settings: Any, read: dict[str, Any], path: tuple[str, ...] = ()) -> None:
        self._settings, self._read, self._path = settings, read, path

    def __getattr__(self, name: str) -> Any:
        value, path = getattr(self._settings, name), (*self._path, name)
        if leaf := _LEAF_AT.get(path):
            self._read[leaf.name] = value
        elif not path[1:] and is_dataclass(value):
            return _Noting(value, self._read, path)
        return value


_LEAF_AT = {leaf.path: leaf for leaf in LEAVES.values()}


def noting(settings: Settings) -> Settings:
    """For one rule; `read_of` tells afterwards what it has looked at."""
    return cast(Settings, _Noting(settings, {}))


def read_of(noted: Settings) -> tuple[tuple[str, str], ...]:
    """(name, value in words) of the settings that were looked at, in that order. noted: made by `noting`."""
    return tuple((name, value_in_words(LEAVES[name], value)) for name, value in cast(_Noting, noted)._read.items())
