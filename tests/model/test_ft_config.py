"""ft_launcher's configuration: its keys, its flags, and what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.config.ft_launcher import from_file, from_flags, surface, why_ignored
from ftslurm.errors import PolicyError
from ftslurm.launchers.srun_options import TORCHRUN_OPTIONS
from ftslurm.model.settings.ft_config import (
    FORMER_KEYS,
    KEYS,
    BeatLimits,
    calculated,
    checked_values,
    limits_from,
    rank_env,
    with_calculated,
)
from ftslurm.sdk import nvrx_config

# The example of the sections guide of nvidia_resiliency_ext, with what it leaves at its default.
FILE = """
other: {deep: [1, {fault_tolerance: {
  rank_section_timeouts: {init: 60, step: 40.5, checkpoint: null},
  rank_out_of_section_timeout: 30, log_level: DEBUG, safety_factor: 4, num_warmup_iterations: 2}}]}
"""


def test_a_file_gives_limits() -> None:
    values, remarks = from_file(yaml.safe_load(FILE), "ft.yaml")
    assert not remarks
    assert limits_from(values) == BeatLimits(None, None, 30.0, {"init": 60.0, "step": 40.5, "checkpoint": None}, 2)
    assert [sentence.partition(" ")[0] for sentence in why_ignored(values)] == ["log_level"]


def test_nothing_gives_no_limits() -> None:
    assert limits_from({}) == BeatLimits() and why_ignored({}) == () and rank_env({}) == {}


def test_all_keys_are_those_of_the_client_with_its_defaults() -> None:
    theirs = nvrx_config.FaultToleranceConfig()
    assert KEYS.keys() == {*nvrx_config.KEYS} and len(KEYS) == 34
    for name in KEYS:
        default = getattr(theirs, name)
        default = getattr(default, "name", default)
        assert checked_values({name: default}, "x") == {name: default}
    ignored = surface().keys_ignored().keys()
    assert len(ignored & KEYS.keys()) == 34 - 11 and ignored - KEYS.keys() == set(FORMER_KEYS)


def test_torchruns_options_are_those_that_ftrun_points_to_ft_launcher_for() -> None:
    assert (
        surface().options.keys() - TORCHRUN_OPTIONS == {"ft-no-restart-exit-code"}
        and not TORCHRUN_OPTIONS - surface().options.keys()
    )


def test_the_rank_gets_what_was_configured() -> None:
    values = {
        "rank_heartbeat_timeout": "60",
        "rank_section_timeouts": "a:5,b:none",
        "rank_termination_signal": 15,
        "log_level": "WARN",
    }
    config = nvrx_config.given_by_ftrun(rank_env(values))
    assert config is not None
    assert (config.rank_heartbeat_timeout, config.rank_section_timeouts) == (60.0, {"a": 5.0, "b": None})
    assert (config.rank_termination_signal.name, config.log_level) == ("SIGTERM", 30)
    assert nvrx_config.VARIABLE in rank_env(values) and nvrx_config.given_by_ftrun({}) is None


@pytest.mark.parametrize(("values", "said"), [
    ({"rank_heartbeat_timout": 60}, "ft.yaml: ft_launcher has no key `rank_heartbeat_timout`; did you mean `rank_heartbeat_timeout`?"),
    ({"rank_heartbeat_timeout": 0}, "ft.yaml: rank_heartbeat_timeout: `0` is out of range: more than 0 s"),
    ({"rank_heartbeat_timeout": -1}, "more than 0 s"),
    ({"rank_heartbeat_timeout": "soon"}, "`soon` is not a number"),
    ({"rank_heartbeat_timeout": True}, "`True` is not a number"),
    ({"rank_heartbeat_timeout": float("nan")}, "is not a number"),
    ({"rank_heartbeat_timeout": [5]}, "is not a number"),
    ({"rank_heartbeat_timeout": 10**400}, "is not a number"),
    ({"workload_check_interval": None}, "`None` is not a number"),
    ({"rank_section_timeouts": [1]}, "not a mapping of section names to seconds"),
    ({"rank_section_timeouts": {"a": "x"}}, "section `a`: `x` is not a number"),
    ({"rank_section_timeouts": {5: 1}}, "`5` is not a valid section name"),
    ({"rank_section_timeouts": {"": 1}}, "is not a valid section name"),
    ({"rank_section_timeouts": {"n" * 256: 1}}, "is not a valid section name"),
    ({"rank_section_timeouts": "a:1,b"}, "`b` is not name:seconds"),
    ({"rank_section_timeouts": {str(n): 1 for n in range(49)}}, "there are 49 sections; at most 48 can be watched"),
    ({"safety_factor": 0}, "more than 0"),
    ({"rank_termination_signal": "SIGNOT"}, "`SIGNOT` is not a signal"),
    ({"rank_termination_signal": 99}, "`99` is not a signal"),
    ({"log_level": "LOUD"}, "`LOUD` is not a log level"),
    ({"log_level": 7}, "`7` is not a log level"),
    ({"num_warmup_iterations": -1}, "out of range"),
    ({"num_warmup_iterations": 1.5}, "not a whole number"),
    ({"enable_nic_monitor": "maybe"}, "neither true nor false"),
    ({"segment": 0}, "out of range"),
    ({"gpu_memory_reclaim_timeout": -1}, "0 or more"),
    ({"cycle_info_dir": 5}, "`5` is not text"),
    ({"attribution_stop_action": "stop"}, "is not one of log, no-restart"),
])  # fmt: skip
def test_what_is_wrong_is_refused_in_a_sentence(values: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError) as refused:
        limits_from(values, "ft.yaml")
    assert said in refused.value.message and refused.value.message.startswith("ft.yaml: ") and refused.value.hint


@pytest.mark.parametrize("tree", [None, 5, [], {}, {"a": [{"b": {}}]}])
def test_a_file_without_the_section_sets_nothing_and_that_is_said(tree: Any) -> None:
    values, (remark,) = from_file(tree, "ft.yaml")
    assert values == {} and remark == "ft.yaml: it has no section `fault_tolerance`, so it sets nothing"


@pytest.mark.parametrize("section", [None, {}, {"rank_heartbeat_timeout": None, "workload_check_interval": None}])
def test_an_empty_section_and_null_leave_the_defaults(section: Any) -> None:
    assert from_file({"a": [{"fault_tolerance": section}]}, "ft.yaml") == ({}, ())


def test_a_key_that_is_not_known_drops_only_itself() -> None:
    values, (remark,) = from_file({"fault_tolerance": {"rank_heartbeat_timout": 60, "safety_factor": 0.5}}, "ft.yaml")
    assert values == {"safety_factor": 0.5}
    assert remark.startswith("ft.yaml: ft_launcher has no key `rank_heartbeat_timout`; did you mean `rank_heartbeat_timeout`?: ")


def test_a_section_that_is_none_is_refused() -> None:
    with pytest.raises(PolicyError, match="not a mapping of keys"):
        from_file({"fault_tolerance": [1]}, "ft.yaml")


def test_keys_of_earlier_versions_are_ignored_by_name() -> None:
    values = {"max_no_progress_restarts": 3, "attrsvc_host": None, "rank_heartbeat_timeout": 5, "segment": 4}
    assert limits_from(values).beat_s == 5.0
    told = why_ignored(values)
    assert (
        "attrsvc_host, max_no_progress_restarts have no effect here: it is of an earlier ft_launcher" in told and len(told) == 2
    )
    assert json.loads(rank_env(values)[nvrx_config.VARIABLE]) == {"rank_heartbeat_timeout": 5.0, "segment": 4}


def test_what_a_program_calculates_is_read_back_and_laid_over_what_was_configured() -> None:
    later = calculated(
        ["first beat 30 s", "beat 3.5 s", "section out of section 2 s", "section step 4 s", "out of section 9 s", "x", "beat y s"]
    )
    assert later == {
        "initial_rank_heartbeat_timeout": 30.0, "rank_heartbeat_timeout": 3.5, "rank_out_of_section_timeout": 9.0,
        "rank_section_timeouts": {"out of section": 2.0, "step": 4.0},
    }  # fmt: skip
    both = with_calculated({"safety_factor": 2, "rank_section_timeouts": {"step": 1.0, "setup": None}}, later)
    assert both["safety_factor"] == 2 and both["rank_section_timeouts"] == {"out of section": 2.0, "step": 4.0, "setup": None}
    assert limits_from(both).beat_s == 3.5


# --- flags


@pytest.mark.parametrize(("words", "values", "path"), [
    (["--ft-param-rank_heartbeat_timeout=60"], {"rank_heartbeat_timeout": "60"}, ""),
    (["--ft-rank-heartbeat-timeout=none"], {"rank_heartbeat_timeout": "none"}, ""),
    (["--ft-rank_heartbeat_timeout="], {"rank_heartbeat_timeout": ""}, ""),
    (["--ft_param_enable_nic_monitor", "--ft-param-rank_section_timeouts=setup:600,step:180"],
     {"enable_nic_monitor": "true", "rank_section_timeouts": "setup:600,step:180"}, ""),
    (["--ft-enable-nic-healthcheck=false"], {"enable_nic_healthcheck": "false"}, ""),
    (["--ft-storage-health-check-path=/data"], {"storage_healthcheck_path": "/data"}, ""),
    (["--fault-tol-cfg-path=a=b.yaml", "--ignore-missing-fault-tol-cfg"], {}, "a=b.yaml"),
    (["--ft-ignore-missing-cfg", "--ft-cfg-path=ft.yaml", "--ft-safety-factor=3"], {"safety_factor": "3"}, "ft.yaml"),
    ([], {}, ""),
])  # fmt: skip
def test_flags_of_all_versions_are_understood(words: list[str], values: dict[str, str], path: str) -> None:
    assert from_flags(words, "here") == (values, path, ())
    limits_from(values)


@pytest.mark.parametrize(("words", "said"), [
    (["--ft-param-rank_heartbeat_timout=60"], "no flag `--ft-param-rank_heartbeat_timout`"),
    (["--max-restarts=3"], "no flag `--max-restarts`"),
    (["--ft-param-rank_heartbeat_timeout"], "has no value"),
    (["--ft-rank-heartbeat-timeout", "--ft-safety-factor=3"], "has no value"),
    (["--ft-safety-factor=3", "--ft-param-safety_factor=3"], "is there twice"),
    (["--ft-cfg-path=a", "--fault-tol-cfg-path=b"], "is there twice"),
    (["train.py"], "no flag `train.py`"),
])  # fmt: skip
def test_flags_that_are_wrong_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(PolicyError, match="here: ") as refused:
        from_flags(words, "here")
    assert said in refused.value.message


@given(st.dictionaries(
    st.sampled_from([*KEYS, "x"]),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
        lambda some: st.one_of(st.lists(some), st.dictionaries(st.one_of(st.text(), st.integers()), some)), max_leaves=5,
    ),
))  # fmt: skip
def test_whatever_is_given_it_is_taken_or_refused(values: dict[str, Any]) -> None:
    try:
        limits_from(values)
        assert nvrx_config.given_by_ftrun(rank_env(values)) is not None or not values
    except PolicyError as error:
        assert error.message


def test_each_key_without_effect_has_its_reason() -> None:
    told = why_ignored(dict.fromkeys([*KEYS, "attrsvc_host"]))
    assert sum(sentence.count(",") for sentence in told) >= 10 and all(" no effect here: " in sentence for sentence in told)
    assert why_ignored({"segment": 2}) == ("segment has no effect here: Slurm's topology places the nodes",)
