"""The settings: units, ranges, layers, and what a mistake is answered with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import PolicyError
from ftslurm.model.rungs import RUNG_NAMES
from ftslurm.model.settings.dialects import from_others
from ftslurm.model.settings.kinds import Layer, count, duration, switch, value_in_words, words_of
from ftslurm.model.settings.tree import LEAVES, Settings, env_name, from_environment, from_tree, is_on, resolve
from tests.settings import settings_with


def layer(place: str = "policy.yaml, line 4", **values: Any) -> Layer:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return Layer(named, dict.fromkeys(named, place))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20s", 20.0), ("1.5h", 5400.0), ("500ms", 0.5), ("5m", 300.0), ("24h", 86400.0), ("2d", 172800.0), (" 20s ", 20.0),
        ("20 s", 20.0), ("never", 0.0), ("0", 0.0), (0, 0.0), ("0s", 0.0),
    ],
)  # fmt: skip
def test_a_duration_has_a_unit(text: object, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "20",
        20,
        20.0,
        "20min",
        "20 seconds",
        "20S",
        "s",
        "",
        "-5s",
        "nans",
        "infs",
        "1e99d",
        "5mm",
        "1h30m",
        "zwanzig",
        None,
        True,
        [],
        {},
    ],
)
def test_a_number_without_a_unit_or_with_a_wrong_one_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration"):
        duration(text)


@given(st.integers(0, 864_000))
def test_a_duration_in_words_means_the_same(seconds: int) -> None:
    leaf = LEAVES["stop.grace"]
    assert duration(value_in_words(leaf, float(seconds))) == seconds


@pytest.mark.parametrize(
    ("raw", "on"), [("true", True), ("On", True), (True, True), ("yes", True), (1, True), ("off", False), (False, False)]
)
def test_a_switch_is_on_or_off(raw: object, on: bool) -> None:
    assert switch(raw) is on


@pytest.mark.parametrize("raw", ["", "maybe", 2, None, "truee", "1.0"])
def test_what_is_neither_on_nor_off_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="neither true nor false"):
        switch(raw)


@pytest.mark.parametrize(("raw", "right"), [(1, True), (128, True), ("8", True), (0, True), (129, False), (-1, False)])
def test_max_restarts_is_0_to_128(raw: object, right: bool) -> None:
    if right:
        assert resolve([layer(max_restarts=raw)]).settings.max_restarts == int(str(raw))
    else:
        with pytest.raises(PolicyError, match=r"policy\.yaml, line 4: max_restarts: -?\d+ is out of range: 0 to 128"):
            resolve([layer(max_restarts=raw)])


@pytest.mark.parametrize("raw", ["eight", "", None, 1.5, "1.0", True, [], "8 restarts"])
def test_a_count_is_a_whole_number(raw: object) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        count(1, 128)(raw)


def test_words_come_as_a_list_or_with_commas() -> None:
    parse = words_of("TERM", "USR1")
    assert parse("TERM, USR1") == parse(["TERM", "USR1"]) == ("TERM", "USR1")
    assert parse("") == parse([]) == ()
    with pytest.raises(ValueError, match="did you mean `USR1`"):
        parse("USR")


def test_the_defaults_are_those_of_the_contract() -> None:
    plain = Settings()
    assert (
        plain.in_place_restart.same_code_limit,
        plain.in_place_restart.same_code_window_s,
        plain.unconditional_requeue.in_a_row,
    ) == (3, 86400.0, 3)
    assert plain.ladder == RUNG_NAMES and 1 <= plain.max_restarts <= 128
    assert (plain.warning.requeue, plain.in_place_restart.crash_restarts, plain.requeue.even_if_no_requeue) == (False, 1, False)


def test_later_layers_win_and_every_value_knows_its_place() -> None:
    resolved = resolve([
        layer("site", max_restarts=2, stop__grace="10s"), layer("policy", max_restarts="5"), layer("cli"),
    ])  # fmt: skip
    assert (resolved.settings.max_restarts, resolved.settings.stop.grace_s) == (5, 10.0)
    assert (resolved.places["max_restarts"], resolved.places["stop.grace"], resolved.places["launcher"]) == (
        "policy",
        "site",
        "default",
    )


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(
        PolicyError, match=r"policy\.yaml, line 4: there is no setting `max_restart`; did you mean `max_restarts`\?"
    ):
        resolve([layer(max_restart=8)])


def test_an_unknown_rung_is_answered_with_the_nearest() -> None:
    with pytest.raises(PolicyError, match=r"line 4: there is no setting `.*`; did you mean `rungs.in-place-restart.enabled`"):
        resolve([Layer({"rungs.in-place-restrat.enabled": True}, {"rungs.in-place-restrat.enabled": "policy.yaml, line 4"})])


def test_an_unknown_setting_of_a_known_rung_is_named() -> None:
    with pytest.raises(PolicyError, match=r"`rungs\.hang-restart\.budget`"):
        resolve([Layer({"rungs.hang-restart.budget": 3}, {"rungs.hang-restart.budget": "here"})])


def test_an_unknown_word_in_the_ladder_is_named() -> None:
    with pytest.raises(PolicyError, match="`requeue` is not one of"):
        resolve([layer(ladder=["in-place-restart", "requeue"])])


@pytest.mark.parametrize(
    "leaf",
    ["stop.grace", "stop.kill_wait", "slurm.timeout", "slurm.patience", "requeue.start_in", "warning.grace", "devices.poll"],
)
def test_never_is_refused_where_it_would_mean_at_once(leaf: str) -> None:
    """A user who writes `stop.grace: never` wants no SIGKILL; taken as 0 it would come without any grace."""
    with pytest.raises(PolicyError, match="never"):
        resolve([Layer({leaf: "never"}, {leaf: "policy.yaml, line 4"})])


@pytest.mark.parametrize(
    "leaf",
    ["isolation.expires", "nodes.straggler_wait", "hang.detect_time", "hang.interval", "hang.c4d_timeout", "hang.compare"],
)
def test_never_is_taken_where_it_means_something(leaf: str) -> None:
    assert LEAVES[leaf].of(resolve([Layer({leaf: "never"}, {leaf: "x"})]).settings) == 0.0


def test_a_tree_is_flattened_to_the_names() -> None:
    tree = {"max_restarts": 3, "rungs": {"in-place-restart": {"enabled": False}, "fail": {}}, "stop": {"grace": "5s"}}
    found = from_tree(tree, lambda name: f"at {name}")
    assert found.values == {"max_restarts": 3, "rungs.in-place-restart.enabled": False, "stop.grace": "5s"}
    assert found.places["stop.grace"] == "at stop.grace"


def test_every_rung_that_can_be_switched_says_whether_it_is_on() -> None:
    assert is_on(Settings(), "fail") and is_on(Settings(), "in-place-restart")
    assert not is_on(settings_with(in_place_restart__enabled=False), "in-place-restart")
    assert [is_on(Settings(), rung) for rung in RUNG_NAMES] == [False, True, True, False, False, True, True, True]


# --- FTRUN_*


def test_every_setting_has_a_variable_of_its_own() -> None:
    names = [env_name(leaf) for leaf in LEAVES]
    assert len(set(names)) == len(names)
    assert env_name("stop.grace") == "FTRUN_STOP_GRACE"
    assert env_name("rungs.in-place-restart.enabled") == "FTRUN_IN_PLACE_RESTART_ENABLED"


def test_variables_are_a_layer() -> None:
    resolved = resolve(
        [from_environment({"FTRUN_MAX_RESTARTS": "3", "FTRUN_POLICY": "p.yaml", "PATH": "/bin", "FTSLURM_STATE_DIR": "x"})]
    )
    assert resolved.settings.max_restarts == 3
    assert resolved.places["max_restarts"] == "environment FTRUN_MAX_RESTARTS"


def test_a_variable_that_sets_nothing_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(PolicyError, match=r"FTRUN_MAX_RESTART sets nothing; did you mean `FTRUN_MAX_RESTARTS`"):
        from_environment({"FTRUN_MAX_RESTART": "3"})


def test_a_variable_with_a_wrong_value_is_named() -> None:
    with pytest.raises(PolicyError, match=r"environment FTRUN_MAX_RESTARTS: max_restarts: -1 is out of range: 0 to 128"):
        resolve([from_environment({"FTRUN_MAX_RESTARTS": "-1"})])


# --- anything at all

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.text(max_size=3), max_size=3)
)


@given(st.sampled_from(sorted(LEAVES)), SCALARS)
def test_any_value_is_taken_or_refused_with_its_place(leaf: str, raw: Any) -> None:
    try:
        resolved = resolve([Layer({leaf: raw}, {leaf: "policy.yaml, line 9"})])
    except PolicyError as error:
        assert str(error).startswith(f"policy.yaml, line 9: {leaf}: ") and error.exit_status == 65
    else:
        assert resolved.places[leaf] == "policy.yaml, line 9"


@given(st.sampled_from(sorted(LEAVES)))
def test_a_default_in_words_is_that_default(leaf: str) -> None:
    field = LEAVES[leaf]
    words = value_in_words(field, field.default)
    assert words and (words in ("none", "(empty)") or field.kind(words) == field.default)


@pytest.mark.parametrize(("said", "grace_s", "words"), [("10", 10.0, "10s"), ("0.5", 0.5, "0.5s"), ("-1", -1.0, "-1")])
def test_how_long_a_clean_up_may_hold_up_a_requeue(said: str, grace_s: float, words: str) -> None:
    layer = from_others({"MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": said})
    settings = resolve([layer]).settings
    assert settings.requeue.cleanup_grace_s == grace_s
    assert value_in_words(LEAVES["requeue.cleanup_grace"], settings.requeue.cleanup_grace_s) == words


@pytest.mark.parametrize(("said", "detect_s"), [("30", 1800.0), ("10", 600.0), ("0.1", 6.0)])
def test_ma_hang_detect_time_is_in_minutes(said: str, detect_s: float) -> None:
    assert resolve([from_others({"MA_HANG_DETECT_TIME": said})]).settings.hang.detect_time_s == detect_s


@pytest.mark.parametrize("said", ["-2", "0", "soon", "10s", "nan"])
def test_a_clean_up_s_grace_that_is_none_is_named(said: str) -> None:
    with pytest.raises(PolicyError, match=f"MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS={said}: not a number of seconds"):
        from_others({"MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": said})


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"lease.time": "15s"}, "lease.time 15 s is below the minimum of 30 s .*several times nodes.silence"),
        ({"lease.time": "29s"}, "lease.time 29 s is below the minimum of 30 s"),
        ({"nodes.silence": "2m"}, "lease.time 60 s is below the minimum of 170 s"),
        ({"nodes.probe_timeout": "36s"}, "lease.time 60 s is below the minimum of 61 s"),
        ({"lease.margin": "36s"}, "lease.time 60 s is below the minimum of 61 s"),
        ({"nodes.silence": "0"}, "nodes.silence 0 s: ftrun would miss no node"),
        ({"lease.margin": "1s"}, "lease.margin 1 s leaves no time"),
    ],
)
def test_leases_that_would_not_do_are_refused(values: dict[str, str], complaint: str) -> None:
    with pytest.raises(PolicyError, match=complaint):
        resolve([Layer(values, dict.fromkeys(values, "policy.yaml, line 1"))])


def test_a_lease_that_just_covers_the_second_proof_will_do() -> None:
    assert resolve([Layer({"lease.time": "30s"}, {"lease.time": "policy.yaml, line 1"})]).settings.lease.time_s == 30.0


def swaps(*layers: Layer) -> tuple[bool, bool, int]:
    """(node-replacement, shrink, their budget)"""
    settings = resolve(layers).settings
    return settings.node_replacement.enabled, settings.shrink.enabled, settings.node_replacement.budget


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ({}, (False, False, 0)),
        ({"nodes__spares": "2"}, (True, False, 2)),
        ({"nodes__min": "3"}, (False, True, 8)),
        ({"nodes__spares": "2", "nodes__min": "3"}, (True, True, 10)),
        ({"nodes__spares": "500"}, (True, False, 128)),
        ({"nodes__spares": "0", "nodes__min": "0"}, (False, False, 0)),
    ],
)
def test_who_asks_for_the_means_wants_the_rung(said: dict[str, str], means: tuple[bool, bool, int]) -> None:
    assert swaps(layer(**said)) == means


@pytest.mark.parametrize("where", ["policy.yaml, line 4", "the job's comment"])
def test_what_was_said_of_the_rung_itself_counts_more_wherever_it_stands(where: str) -> None:
    spares, none = layer("the job's comment", nodes__spares="2"), layer(where, rungs__node_replacement__enabled="false")
    named = {name.replace("node_replacement", "node-replacement"): value for name, value in none.values.items()}
    off = Layer(named, dict.fromkeys(named, where))
    budget = Layer({"rungs.node-replacement.budget": "1"}, {"rungs.node-replacement.budget": where})
    assert swaps(spares, off) == swaps(off, spares) == (False, False, 2)
    assert swaps(spares, budget) == swaps(budget, spares) == (True, False, 1)


@pytest.mark.parametrize(
    ("leaves", "leaf", "value"),
    [
        ({"rungs.node-replacement.enabled": "true"}, "rungs.node-replacement.budget", 3),
        ({"rungs.node-replacement.enabled": "true", "nodes.spares": "2"}, "rungs.node-replacement.budget", 2),
        (
            {"rungs.node-replacement.enabled": "true", "rungs.node-replacement.budget": "0"},
            "rungs.node-replacement.enabled",
            False,
        ),
        ({"rungs.node-replacement.budget": "2"}, "rungs.node-replacement.enabled", True),
        ({"rungs.node-replacement.budget": "0"}, "rungs.node-replacement.enabled", False),
        (
            {"rungs.node-replacement.budget": "2", "rungs.node-replacement.enabled": "false"},
            "rungs.node-replacement.enabled",
            False,
        ),
        ({"rungs.shrink.enabled": "true"}, "nodes.min", 1),
        ({"rungs.shrink.enabled": "true"}, "rungs.node-replacement.budget", 8),
        ({"rungs.shrink.enabled": "true"}, "rungs.node-replacement.enabled", False),
        ({}, "rungs.hang-restart.enabled", None),
        ({"rungs.hang-restart.enabled": "auto"}, "rungs.hang-restart.enabled", None),
        ({"rungs.hang-restart.in_a_row": "5"}, "rungs.hang-restart.enabled", True),
        ({"rungs.hang-restart.in_a_row": "5", "rungs.hang-restart.enabled": "false"}, "rungs.hang-restart.enabled", False),
        ({"hang.interval": "60s"}, "hang.log_silence", True),
        ({"hang.interval": "60s", "hang.log_silence": "false"}, "hang.log_silence", False),
        ({"hang.exit_interval": "60s"}, "hang.exit_detection", True),
        ({}, "hang.exit_detection", False),
    ],
)
def test_a_switch_means_its_number_and_a_number_its_switch(leaves: dict[str, str], leaf: str, value: object) -> None:
    settings = resolve([Layer(leaves, dict.fromkeys(leaves, "policy.yaml"))]).settings
    assert LEAVES[leaf].of(settings) == value


def test_what_is_implied_stands_where_it_was_implied() -> None:
    places = resolve((layer("--ft-spares", nodes__spares="2"), layer("policy.yaml", nodes__min="3"))).places
    assert places["rungs.node-replacement.enabled"] == "--ft-spares" and places["rungs.shrink.enabled"] == "policy.yaml"
    assert places["rungs.node-replacement.budget"] in ("--ft-spares", "policy.yaml")


@pytest.mark.parametrize(
    ("given", "on"),
    [
        ({"rank_heartbeat_timeout": 60}, True), ({"rank_section_timeouts": {"step": 30.0}}, True),
        ({"rank_out_of_section_timeout": "60"}, True), ({"initial_rank_heartbeat_timeout": 600}, True),
        ({"rank_heartbeat_timeout": None, "rank_section_timeouts": {}}, False), ({"safety_factor": 4.0}, False),
    ],
)  # fmt: skip
def test_who_sets_a_timeout_for_heartbeats_or_sections_means_a_restart(given: dict[str, Any], on: bool) -> None:
    config = Layer({"fault_tolerance": given}, {"fault_tolerance": "--ft-cfg-path"})
    resolved = resolve((config,))
    assert resolved.settings.hang_restart.enabled is (True if on else None)
    assert resolved.places["rungs.hang-restart.enabled"] == ("--ft-cfg-path" if on else "default")
    off = Layer({"rungs.hang-restart.enabled": "false"}, {"rungs.hang-restart.enabled": "a policy"})
    assert not resolve((off, config)).settings.hang_restart.enabled and not resolve((config, off)).settings.hang_restart.enabled
