"""Programs written for nvidia_resiliency_ext.fault_tolerance 0.7.0, method by method."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftslurm.sdk import notes, nvrx, nvrx_config
from ftslurm.sdk.nvrx import (
    FaultToleranceConfig,
    HeartbeatTimeouts,
    RankMonitorClient,
    RankMonitorClientError,
    SectionTimeouts,
    TimeoutsCalc,
    TimeoutsCalcError,
    WorkloadAction,
    WorkloadControlRequest,
)
from ftslurm.sdk.page import PageState, page_paths, read_page
from tests.hang.torch_here import need_torch
from tests.sdk.conftest import ROOT
from tests.sdk.reading import read_notes

Rank = Callable[..., "subprocess.CompletedProcess[str]"]


def configured(monkeypatch: pytest.MonkeyPatch, **keys: Any) -> None:
    """ftrun was given ft_launcher's configuration."""
    monkeypatch.setenv(nvrx_config.VARIABLE, json.dumps(keys))


def started(warmup: int | None = None) -> RankMonitorClient:
    client = RankMonitorClient()
    client.init_workload_monitoring(num_warmup_iters=warmup)
    return client


def read(path: str) -> PageState:
    state = read_page(path)
    assert state is not None
    return state


def opened(path: str) -> list[str]:
    return [one.name for one in read(path).sections if one.opened_ns]


def limits(path: str) -> list[tuple[Any, ...]]:
    return [note.limits for note in read_notes(path + notes.SUFFIX, 0)[0] if note.limits]


# --- client: its life


def test_a_client_knows_its_rank_and_its_configuration(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, rank_heartbeat_timeout=60, rank_section_timeouts={"step": 10, "setup": None}, safety_factor=3)
    monkeypatch.setenv("LOCAL_RANK", "1")
    client = RankMonitorClient()
    assert (client.is_initialized, client.hb_timeouts, client.section_timeouts, client.cfg) == (False, None, None, None)
    assert client.init_workload_monitoring(num_warmup_iters=7) is None  # type: ignore[func-returns-value]
    assert client.rank_info and (client.rank_info.global_rank, client.rank_info.local_rank) == (3, 1)
    assert client.cfg and (client.cfg.rank_heartbeat_timeout, client.cfg.num_warmup_iterations) == (60, 7)
    assert client.hb_timeouts == HeartbeatTimeouts(None, 60, False)
    assert client.section_timeouts == SectionTimeouts({"step": 10, "setup": None}, None, set(), False)
    assert client.timeouts_calc and client.timeouts_calc.safety_factor == 3 and client.iter_idx == 0
    assert client.CURRENT_TIMEOUTS_STATE_KEY == "current_timeouts" and isinstance(client.logger, logging.Logger)
    assert read(page_path).init_ns and read(page_path).warmup == 7 and limits(page_path) == []


def test_it_can_be_shut_down_and_started_again(page_path: str) -> None:
    client = started()
    with pytest.raises(RankMonitorClientError, match="already"):
        client.init_workload_monitoring()
    client.send_heartbeat()
    client.shutdown_workload_monitoring()
    client.shutdown_workload_monitoring()
    assert not client.is_initialized and read(page_path).init_ns == 0
    client.init_workload_monitoring()
    assert read(page_path).init_ns and read(page_path).beats == 0 and read(page_path).warmup is None


def test_before_init_only_a_mistake_raises(page_path: str) -> None:
    client = RankMonitorClient()
    for mistake in (
        client.send_heartbeat, lambda: client.start_section("a"), lambda: client.end_section("a"), client.end_all_sections,
        client.calculate_and_set_hb_timeouts, client.calculate_and_set_section_timeouts,
    ):  # fmt: skip
        with pytest.raises(RankMonitorClientError, match="not initialized"):
            mistake()
    client.shutdown_workload_monitoring()
    assert client.state_dict() == {"current_timeouts": {}}
    assert read_page(page_path) is None


def test_nobody_says_which_rank_it_is(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK")
    with pytest.raises(RuntimeError, match="rank"):
        started()
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_LOCALID", "2")
    client = started()
    assert client.rank_info and (client.rank_info.global_rank, client.rank_info.local_rank) == (5, 2)


def test_without_ftrun_all_is_kept_to_itself(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTSLURM_PAGE")
    client = started()
    for _ in range(2):
        client.send_heartbeat()
        client.start_section("step")
        client.end_section("step")
    assert client.calculate_and_set_hb_timeouts() and client.calculate_and_set_section_timeouts()
    client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ShutdownWorkload))
    client.shutdown_workload_monitoring()
    assert set(client.state_dict()["current_timeouts"]) == {"heartbeat", "section"}


def test_a_configuration_that_cannot_be_read_is_none(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("{", "[1]", '{"rank_termination_signal": "SIGNOT"}', "[" * 100_000):
        monkeypatch.setenv(nvrx_config.VARIABLE, text)
        assert started().cfg == FaultToleranceConfig()


def test_what_a_forked_launcher_starts_has_a_page_of_its_own(page_path: str, rank: Rank) -> None:
    rank("""
        import os
        from ftslurm.sdk.nvrx import RankMonitorClient
        client = RankMonitorClient()
        client.init_workload_monitoring()
        if os.fork() == 0:
            client = RankMonitorClient()
            client.init_workload_monitoring()
            client.send_heartbeat()
            os._exit(0)
        os.wait()
        """)
    assert [read(path).beats for path in page_paths(page_path)] == [0, 1]


# --- client: heartbeats and sections


def test_heartbeats_and_sections_are_on_the_page(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, rank_section_timeouts={"outer": 10, "inner": None})
    client = started()
    client.send_heartbeat()
    client.start_section("outer")
    client.start_section("inner")
    assert (read(page_path).beats, opened(page_path)) == (1, ["outer", "inner"])
    client.end_section("outer")
    assert opened(page_path) == ["inner"]


def test_a_section_that_is_not_configured_is_passed_over(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, rank_section_timeouts={"step": 10})
    client = started()
    for _ in range(2):
        client.start_section("other")
    client.end_section("never")
    assert read(page_path).sections == () and client.timeouts_calc and client.timeouts_calc.open_sections == {}


def test_a_section_is_not_opened_twice_nor_closed_when_it_is_not_open(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, rank_section_timeouts={"step": 10})
    client = started()
    with pytest.raises(RankMonitorClientError, match="not open"):
        client.end_section("step")
    client.start_section("step")
    with pytest.raises(RankMonitorClientError, match="open already"):
        client.start_section("step")
    assert opened(page_path) == ["step"]


def test_without_a_configuration_all_sections_are_taken_and_mistakes_forgiven(page_path: str) -> None:
    client = started()
    client.end_section("never")
    client.start_section("step")
    client.start_section("step")
    client.start_section(None)  # type: ignore[arg-type]
    assert opened(page_path) == ["step"]
    client.end_section("step")
    assert read(page_path).sections[0].times == 1 and list(client.timeouts_calc.section_to_max_time) == ["step"]  # type: ignore[union-attr]


def test_all_sections_end(page_path: str) -> None:
    client = started()
    client.end_all_sections()
    client.start_section("a")
    client.start_section("b")
    client.end_all_sections()
    assert opened(page_path) == [] and client.timeouts_calc and not client.timeouts_calc.open_sections
    client.start_section("a")


def test_sections_left_open_are_complained_about_at_the_end(page_path: str, caplog: pytest.LogCaptureFixture) -> None:
    client = started()
    client.start_section("step")
    client.shutdown_workload_monitoring()
    assert "'step'" in caplog.text and opened(page_path) == []


def test_megatrons_iteration_is_progress(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("megatron.training.global_vars")
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", module)
    client = started()
    client.start_section("step")
    assert read(page_path).step is None
    module._GLOBAL_ARGS = argparse.Namespace(iteration=40)  # type: ignore[attr-defined]
    client.start_section("step")
    module._GLOBAL_ARGS.curr_iteration = 43  # type: ignore[attr-defined]
    client.start_section("checkpointing")
    client.start_section("step")
    assert (read(page_path).first_step, read(page_path).step, read(page_path).steps) == (40, 43, 2)


# --- client: calculated timeouts


def test_heartbeat_timeouts_are_calculated_and_told(page_path: str) -> None:
    client = started()
    with pytest.raises(RankMonitorClientError, match="Not enough data"):
        client.calculate_and_set_hb_timeouts()
    client.send_heartbeat()
    assert client.calculate_and_set_hb_timeouts(skip_if_not_ready=True) is False
    time.sleep(0.02)
    client.send_heartbeat()
    assert client.calculate_and_set_hb_timeouts() is True
    timeouts = client.hb_timeouts
    assert timeouts and timeouts.were_calculated and timeouts.are_valid and timeouts.subsequent and timeouts.subsequent >= 0.1
    assert limits(page_path) == [(timeouts.initial, timeouts.subsequent, None, ())]


def test_what_hardly_changes_is_told_once(page_path: str) -> None:
    """A job that calculates with every checkpoint for weeks must not fill its notes."""
    client = started()
    for _ in range(300):
        client.start_section("step")
        client.end_section("step")
        assert client.timeouts_calc
        client.timeouts_calc.section_to_max_time["step"] = client.timeouts_calc.out_of_section_max_time = 10.0
        client.send_heartbeat()
        client.timeouts_calc.initial_max_time = client.timeouts_calc.subsequent_max_time = 1.0
        client.calculate_and_set_section_timeouts()
        client.calculate_and_set_hb_timeouts()
    assert limits(page_path) == [(None, None, 50.0, (("step", 50.0),)), (5.0, 5.0, None, ())]
    client.timeouts_calc.section_to_max_time["step"] = 20.0
    for _ in range(300):
        client.calculate_and_set_section_timeouts()
    assert 3 < len(limits(page_path)) < 11 and 98 < limits(page_path)[-1][3][0][1] < 100


def test_section_timeouts_are_calculated_for_those_selected(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, rank_section_timeouts={"setup": 600, "step": 180}, rank_out_of_section_timeout=300)
    client = started()
    client.start_section("step")
    client.end_section("step")
    assert client.calculate_and_set_section_timeouts(skip_if_not_ready=True) is False  # no setup yet
    assert client.calculate_and_set_section_timeouts(["nowhere"], skip_if_not_ready=True) is False
    assert client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    told = client.section_timeouts
    assert told and told.calculated_sections == {"step"} and not told.is_out_of_section_calculated and not told.were_calculated
    assert (told.section["setup"], told.out_of_section) == (600, 300) and told.section["step"] and told.section["step"] < 1
    client.start_section("setup")
    client.end_section("setup")
    assert client.calculate_and_set_section_timeouts() and client.section_timeouts and client.section_timeouts.were_calculated


def test_what_was_calculated_goes_into_a_checkpoint_and_comes_back(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = started()
    for _ in range(2):
        client.send_heartbeat()
        client.start_section("step")
        client.end_section("step")
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts()
    saved = json.loads(json.dumps(client.state_dict()))
    assert set(saved["current_timeouts"]["heartbeat"]) == {"initial", "subsequent", "were_calculated"}
    assert saved["current_timeouts"]["section"]["calculated_sections"] == ["step"]
    assert saved["current_timeouts"]["section"]["is_out_of_section_calculated"] is True
    client.shutdown_workload_monitoring()

    configured(monkeypatch, rank_heartbeat_timeout=60, rank_section_timeouts={"step": 10})
    early, late = RankMonitorClient(), started()
    early.load_state_dict(saved)
    assert early.state_dict() == saved  # not even an early checkpoint loses them
    early.init_workload_monitoring()
    late.load_state_dict(saved)
    for other in (early, late):
        assert (other.hb_timeouts, other.section_timeouts) == (client.hb_timeouts, client.section_timeouts)
        assert other.state_dict() == saved
    assert len(limits(page_path)) == 4  # two calculated, two loaded


def test_a_state_of_another_version_or_none_is_no_harm(page_path: str) -> None:
    client = started()
    client.load_state_dict({})
    client.load_state_dict({"current_timeouts": {}, "more": 1})
    client.load_state_dict({"current_timeouts": {"heartbeat": {"initial": 5.0, "subsequent": 3.0, "new": 1}}})
    assert client.hb_timeouts == HeartbeatTimeouts(5.0, 3.0) and limits(page_path) == [(5.0, 3.0, None, ())]
    assert client.state_dict() == {"current_timeouts": {}}  # they do not say that they were calculated


def test_what_an_earlier_start_has_calculated_holds_and_is_no_configuration(
    page_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"every_section": True, "initial_rank_heartbeat_timeout": 9.0, "rank_heartbeat_timeout": 3.0}
    monkeypatch.setenv(nvrx_config.VARIABLE, json.dumps(told, separators=(",", ":")))
    client = started()
    assert client.hb_timeouts == HeartbeatTimeouts(9.0, 3.0, False)
    client.start_section("anything")
    client.end_section("anything")
    assert client.timeouts_calc and "anything" in client.timeouts_calc.section_to_max_time


def test_ranks_without_a_process_group_cannot_agree(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TimeoutsCalcError, match="process group"):
        started().calculate_and_set_hb_timeouts(skip_if_not_ready=True)


GLOO = """
import os, sys, time
import torch.distributed as dist
from ftslurm.sdk.nvrx import RankMonitorClient
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
client = RankMonitorClient()
client.init_workload_monitoring()
for step in range(3):
    client.send_heartbeat()
    client.start_section("step")
    time.sleep(0.1 * rank)
    client.end_section("step")
if rank == 0:  # a section that the other one never sees
    client.start_section("checkpointing")
    time.sleep(0.05)
    client.end_section("checkpointing")
assert client.calculate_and_set_hb_timeouts() and client.calculate_and_set_section_timeouts()
print(client.state_dict(), client.hb_timeouts.subsequent > 0.5, client.section_timeouts.section["checkpointing"] > 0.25)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("sections", [
    pytest.param({}, marks=pytest.mark.long, id="none"),
    pytest.param({"rank_section_timeouts": {"step": None, "checkpointing": 9}}, id="some"),
])  # fmt: skip
def test_all_ranks_calculate_the_same(rank_env: dict[str, str], tmp_path: Path, sections: dict[str, Any]) -> None:
    need_torch()
    config = {nvrx_config.VARIABLE: json.dumps(sections)} if sections else {}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", GLOO, str(tmp_path / "store")],
            env={**rank_env, **config, "PYTHONPATH": str(ROOT), "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=180)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said[0] == said[1] and said[0].endswith("True True\n")


# --- the calculation itself


def test_timeouts_are_the_longest_time_seen_times_the_factor() -> None:
    calc = TimeoutsCalc(["a", "b"], start_time=100.0, safety_factor=5.0)
    for at in (110.0, 111.0, 114.0, 115.0):
        calc.update_on_heartbeat(at)
    assert calc.get_hb_timeouts() == HeartbeatTimeouts(50.0, 15.0, True) and calc.count == 4
    calc.open("a", 102.0)
    calc.open("b", 103.0)
    calc.close("a", 106.0)  # they overlap
    calc.close("b", 110.0)
    calc.maybe_bump_oos_time(111.0)
    assert calc.get_section_timeouts() == SectionTimeouts({"a": 20.0, "b": 35.0}, 10.0, {"a", "b"}, True)


def test_what_was_calculated_twice_is_the_mean_and_what_was_configured_gives_way() -> None:
    calc = TimeoutsCalc(["a", "b", "c"], start_time=0.0, safety_factor=2.0)
    for name, seconds in (("a", 10.0), ("b", 20.0), ("c", 30.0)):
        calc.open(name, 100.0)
        calc.close(name, 100.0 + seconds)
    calc.update_on_heartbeat(1.0)
    calc.update_on_heartbeat(5.0)
    old = SectionTimeouts({"a": 40.0, "b": 7.0, "c": 9.0}, 100.0, {"a"}, True)
    new = calc.get_section_timeouts(["a", "b"], calc_out_of_section=False, current=old)
    assert new == SectionTimeouts({"a": 30.0, "b": 40.0, "c": 9.0}, 100.0, {"a", "b"}, True)
    assert calc.get_section_timeouts(["a"], True, old).out_of_section == 0.5 * 100 + 0.5 * 200
    assert calc.get_hb_timeouts(HeartbeatTimeouts(4.0, 4.0, True)) == HeartbeatTimeouts(3.0, 6.0, True)
    assert calc.get_hb_timeouts(HeartbeatTimeouts(4.0, 4.0, False)) == HeartbeatTimeouts(2.0, 8.0, True)


def test_a_selection_of_nothing_waits_for_all_and_changes_none() -> None:
    calc = TimeoutsCalc(["a"], start_time=0.0)
    assert not calc.can_get_section_timeouts([], calc_out_of_section=False)
    calc.open("a", 1.0)
    calc.close("a", 2.0)
    assert calc.get_section_timeouts([], False, SectionTimeouts({"a": 3.0})) == SectionTimeouts({"a": 3.0})


def test_sections_in_the_wrong_order_are_refused() -> None:
    calc = TimeoutsCalc(["a"], start_time=0.0)
    for section, act in (("x", calc.open), ("a", calc.close)):
        with pytest.raises(TimeoutsCalcError):
            act(section, 1.0)
    calc.open("a", 1.0)
    with pytest.raises(TimeoutsCalcError):
        calc.open("a", 2.0)
    for too_early in (calc.get_hb_timeouts, calc.get_section_timeouts):
        with pytest.raises(TimeoutsCalcError, match="Not enough data"):
            too_early()


# --- workload control


@pytest.mark.parametrize(("action", "told"), [
    (WorkloadAction.Continue, "continue"),
    (WorkloadAction.ExcludeThisNode, "exclude"),
    (WorkloadAction.ShutdownWorkload, "shutdown"),
])  # fmt: skip
def test_a_request_is_passed_on(page_path: str, action: WorkloadAction, told: str) -> None:
    client = started()
    request = WorkloadControlRequest(action, description="bad GPU")
    assert client.send_workload_control_request(request) is None  # type: ignore[func-returns-value]
    assert str(request) == f"WorkloadControlRequest(action={action}, description=bad GPU)"
    assert read_notes(page_path + notes.SUFFIX, 0)[0][0] == notes.Note(told, ("bad GPU",))
    assert [(member.name, member.value) for member in WorkloadAction] == [
        ("Continue", 0), ("ExcludeThisNode", 1), ("ShutdownWorkload", 2),
    ]  # fmt: skip


def test_the_exception_hook_ends_the_process_at_once(rank: Rank) -> None:
    done = rank("""
        import threading, time
        from ftslurm.sdk.nvrx import RankMonitorClient
        RankMonitorClient().init_workload_monitoring()
        threading.Thread(target=time.sleep, args=(300,)).start()
        raise KeyError("lost")
        """, status=1, FTSLURM_FT_CONFIG='{"install_exception_hook": true}')  # fmt: skip
    assert "KeyError: 'lost'" in done.stderr


# --- configuration


def test_the_configuration_has_its_34_keys_and_defaults() -> None:
    config = FaultToleranceConfig()
    assert len(dataclasses.fields(config)) == 34
    assert (config.rank_heartbeat_timeout, config.safety_factor, config.rank_termination_signal) == (None, 5.0, signal.SIGKILL)
    assert config.is_progress_tracking_enabled and not FaultToleranceConfig(max_no_progress_cycles=0).is_progress_tracking_enabled


def test_it_is_made_from_names(tmp_path: Path) -> None:
    made = FaultToleranceConfig.from_kwargs(
        rank_heartbeat_timeout=5, strange=1, rank_termination_signal="sigterm", log_level="WARN"
    )
    assert (made.rank_heartbeat_timeout, made.rank_termination_signal, made.log_level) == (5, signal.SIGTERM, logging.WARNING)
    with pytest.raises(ValueError, match="strange"):
        FaultToleranceConfig.from_kwargs(ignore_not_recognized=False, strange=1)
    for wrong in ({"rank_termination_signal": "SIGNOT"}, {"rank_termination_signal": 1000}, {"rank_termination_signal": 1.5},
                  {"log_level": "LOUD"}, {"log_level": 7}, {"log_level": None}):  # fmt: skip
        with pytest.raises(ValueError):
            FaultToleranceConfig.from_kwargs(**wrong)


def test_it_goes_into_a_file_and_comes_back_from_any_depth(tmp_path: Path) -> None:
    config = FaultToleranceConfig(rank_section_timeouts={"step": 5.0, "setup": None}, rank_termination_signal=signal.SIGUSR1)
    config.to_yaml_file(str(tmp_path / "ft.yaml"))
    tree = yaml.safe_load((tmp_path / "ft.yaml").read_text())
    assert tree["fault_tolerance"]["rank_termination_signal"] == "SIGUSR1"
    assert FaultToleranceConfig.from_yaml_file(str(tmp_path / "ft.yaml")) == config
    (tmp_path / "deep.yaml").write_text(yaml.safe_dump({"a": [1, {"b": tree}]}))
    assert FaultToleranceConfig.from_yaml_file(str(tmp_path / "deep.yaml")) == config
    for text in ("", "a: 1", "fault_tolerance:", "fault_tolerance: 5"):
        (tmp_path / "none.yaml").write_text(text)
        with pytest.raises(ValueError, match="section not found"):
            FaultToleranceConfig.from_yaml_file(str(tmp_path / "none.yaml"))
    with pytest.raises(FileNotFoundError):
        FaultToleranceConfig.from_yaml_file(str(tmp_path / "missing.yaml"))


def test_arguments_beat_the_file_and_the_file_the_defaults(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance: {rank_heartbeat_timeout: 60, safety_factor: 2, log_level: DEBUG}")
    args = argparse.Namespace(
        ft_cfg_path=str(path),
        ft_rank_heartbeat_timeout="none",
        ft_rank_section_timeouts="a:5, b:null",
        ft_param_log_level="ERROR",
    )
    config = FaultToleranceConfig.from_args(args)
    assert (config.rank_heartbeat_timeout, config.safety_factor, config.log_level) == (None, 2, logging.ERROR)
    assert config.rank_section_timeouts == {"a": 5.0, "b": None}
    assert FaultToleranceConfig.from_args(argparse.Namespace(ft_cfg_path=None)) == FaultToleranceConfig()
    path.write_text("nothing: here")
    assert FaultToleranceConfig.from_args(argparse.Namespace(fault_tol_cfg_path=str(path))) == FaultToleranceConfig()
    assert "is not used" in caplog.text


def test_without_pyyaml_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    for call in (FaultToleranceConfig.from_yaml_file, FaultToleranceConfig().to_yaml_file):
        with pytest.raises(ImportError, match="pip install pyyaml"):
            call(str(tmp_path / "ft.yaml"))


# --- of the monitor


def test_the_monitors_parts_are_there_and_say_why_they_are_of_no_use() -> None:
    for make in (nvrx.RankMonitorServer, nvrx.RankMonitorStateMachine, nvrx.RankMonitorServer.run,
                 nvrx.RankMonitorServer.run_in_subprocess):  # fmt: skip
        with pytest.raises(RuntimeError, match="under ftrun the ranks are watched already"):
            make("any", thing=1)
    assert next(iter(nvrx.RankMonitorState)).name == "UNINITIALIZED" and len(nvrx.RankMonitorState) == 7
    assert issubclass(nvrx.InvalidStateTransitionException, Exception)
