"""AIMaster's own flags. Source: AIMaster, fault tolerance monitoring (parameter table and samples)."""

from __future__ import annotations

import pytest

from ftslurm.config.settings_files import profile_layers
from ftslurm.errors import PolicyError
from ftslurm.model.settings.dialects import FLAGS
from ftslurm.model.settings.dialects import from_aimaster as parse
from ftslurm.model.settings.tree import Settings, resolve


def settings(flags: str) -> Settings:
    return resolve([parse(flags, "--ft-aimaster")]).settings


def test_its_defaults_restart_nothing() -> None:
    st = settings("")
    assert (st.mode, st.retry.policy, st.retry.same_error, st.retry.failure_rate) == ("sync", "ExitCodeAndErrorMsg", 10, -1.0)
    assert not (
        st.in_place_restart.enabled
        or st.isolated_requeue.enabled
        or st.unconditional_requeue.enabled
        or st.hang_restart.enabled
        or st.in_place_restart.crash_restarts
    )
    assert (st.hang.interval_s, st.hang.exit_interval_s) == (1800.0, 600.0)


@pytest.mark.parametrize(("profile", "flags"), [("aimaster-sync", ""), ("aimaster-async", "--job-execution-mode=Async")])
def test_a_profile_is_its_defaults(profile: str, flags: str) -> None:
    assert resolve(profile_layers(profile, "test")).settings == settings(flags)


def test_the_samples_of_its_page() -> None:
    sync = settings(
        "--job-execution-mode=Sync --enable-job-restart=True --max-num-of-job-restart=3 --fault-tolerant-policy=ExitCodeAndErrorMsg"
    )
    assert (
        sync.mode == "sync"
        and sync.in_place_restart.enabled
        and sync.in_place_restart.crash_restarts == sync.max_job_restarts == 3
        and sync.isolated_requeue.enabled
    )
    hang = settings(
        "--job-execution-mode=Sync --enable-job-restart=True --enable-job-hang-detection=True --job-hang-interval=3600"
    )
    assert hang.hang_restart.enabled and hang.hang.interval_s == 3600.0
    workers = settings("--job-execution-mode=Async --fault-tolerant-policy=OnFailure")
    assert workers.mode == "async" and workers.retry.policy == "OnFailure" and not workers.unconditional_requeue.enabled


def test_values_may_stand_apart_and_the_rest_of_the_table_is_taken() -> None:
    st = settings(
        "--max-tolerated-failure-rate 0.3 --max-num-of-same-error 2 --enable-c4d-hang-detection True --c4d-log-level=Info "
        "--c4d-common-envs=C4D_HANG_TIMEOUT=60,C4D_HANG_TIMES=3,C4D_OTHER=1 --enable-job-exit-hang-detection=True --job-exit-hang-interval=60"
    )
    assert (st.retry.failure_rate, st.retry.same_error, st.hang.c4d, st.hang.c4d_level) == (0.3, 2, False, "Info"), (
        "C4D needs hang detection"
    )
    assert (st.hang.c4d_timeout_s, st.hang.c4d_times, st.hang.exit_detection, st.hang.exit_interval_s) == (60.0, 3, True, 60.0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--enable-job-restrat=True", ("--enable-job-restrat", "did you mean `enable-job-restart`")),
        ("restart", ("no flag `restart`",)),
        ("-h", ("no flag `-h`",)),
        ("--job-execution-mode=sync", ("--job-execution-mode", "Sync, Async")),
        ("--job-execution-mode", ("has no value",)),
        ("--enable-job-restart=maybe", ("--enable-job-restart", "neither true nor false")),
        ("--max-num-of-job-restart=0", ("1 to 128",)),
        ("--max-num-of-job-restart=x", ("not a whole number",)),
        ("--job-hang-interval=-5", ("out of range",)),
        ("--max-tolerated-failure-rate=1.5", ("0 to 1",)),
        ("--fault-tolerant-policy=Always", ("ExitCodeAndErrorMsg, OnFailure, Never",)),
        ("--job-hang-interval=5 --job-hang-interval=6", ("twice",)),
        ("--job-execution-mode=Async --enable-job-hang-detection=True", ("Sync jobs only",)),
        ("--job-execution-mode=Async --enable-job-exit-hang-detection=True", ("exit-hang-detection", "Sync jobs only")),
        ("--c4d-common-envs=x", ("NAME=VALUE",)),
        ('--job-execution-mode="Sync', ("quotation",)),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_named(flags: str, words: tuple[str, ...]) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(flags, "--ft-aimaster")
    assert "--ft-aimaster" in str(caught.value) and all(word in str(caught.value) for word in words)


def test_every_flag_of_the_table_is_known() -> None:
    assert set(FLAGS) == {
        "job-execution-mode", "enable-job-restart", "max-num-of-job-restart", "enable-job-hang-detection", "job-hang-interval",
        "enable-c4d-hang-detection", "enable-job-exit-hang-detection", "job-exit-hang-interval", "fault-tolerant-policy",
        "max-num-of-same-error", "max-tolerated-failure-rate", "c4d-log-level", "c4d-common-envs",
    }  # fmt: skip


def test_a_hang_restarts_a_job_only_where_restarts_are_on() -> None:
    both = settings(
        "--enable-job-restart=True --enable-job-hang-detection=True --enable-c4d-hang-detection=True --max-num-of-job-restart=5"
    )
    assert both.hang_restart.enabled and both.hang.c4d and both.hang.detection and both.hang_restart.in_a_row == 5
    assert not settings("--enable-job-hang-detection=True").hang_restart.enabled
    exits = settings("--enable-job-restart=True --enable-job-exit-hang-detection=True")
    assert (
        exits.hang_restart.enabled
        and exits.hang.exit_detection
        and not (exits.hang.detection or exits.hang.log_silence or exits.hang.c4d)
    )


def test_no_rule_calls_a_hang_what_the_interval_allows() -> None:
    st = settings(
        "--enable-job-restart=True --enable-job-hang-detection=True --job-hang-interval=3600 --enable-c4d-hang-detection=True"
    )
    limits = (st.hang.interval_s, st.hang.detect_time_s, st.hang.stall_s, st.hang.stall_at_work_s, st.hang.start_s)
    assert limits == (3600.0,) * 5
