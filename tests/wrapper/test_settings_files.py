"""What people write: policies, profiles, annotations, variables and options, and what their mistakes are answered with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.config.settings_files import MAX_BYTES, SettingsAsked, policy_layers, profile_layers, settings_in_force
from ftslurm.errors import PolicyError
from ftslurm.model.devices import Severity
from ftslurm.model.settings.tree import LEAVES, Resolved

REPOSITORY = Path(__file__).parents[2]
NO_SITE = Path("/nonexistent/policy.yaml")
Write = Callable[[str], Path]


@pytest.fixture
def policy(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        return path

    return write


def in_force(path: Path, **env: str) -> Resolved:
    return settings_in_force(SettingsAsked(policy=str(path)), env, site=NO_SITE)


def complaint(path: Path) -> str:
    with pytest.raises(PolicyError) as caught:
        in_force(path)
    assert caught.value.exit_status == 65 and caught.value.hint and "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path)), "the place comes first"
    return str(caught.value).removeprefix(str(path))


def test_a_policy_sets_what_it_names(policy: Write) -> None:
    resolved = in_force(policy("max_restarts: 5\nstop:\n  grace: 10s\nrungs:\n  hang-restart:\n    enabled: on\n"))
    assert (resolved.settings.max_restarts, resolved.settings.stop.grace_s, resolved.settings.hang_restart.enabled) == (
        5,
        10.0,
        True,
    )
    assert resolved.places["stop.grace"].endswith("policy.yaml, line 3")
    assert resolved.places["launcher"] == "default"


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "rungs:\n  fail: {}\n"])
def test_an_empty_policy_changes_nothing(policy: Write, text: str) -> None:
    assert set(in_force(policy(text)).places.values()) == {"default"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_restarts: 5\nmax_restart: 3\n", ", line 2: there is no setting `max_restart`; did you mean `max_restarts`?"),
        ("stop:\n\n  grace: 20\n", ", line 3: stop.grace: `20` is not a duration (write a duration, such as 20s"),
        ("stop:\n  grace: 20min\n", ", line 2: stop.grace: `20min` is not a duration"),
        ("rungs:\n  hang-restrat:\n    enabled: on\n", ", line 3: there is no setting `rungs.hang-restrat.enabled`; did you mean `rungs.hang-restart.enabled`?"),
        ("rungs:\n  pod-restart:\n    enabled: true\n", ", line 3: there is no setting `rungs.pod-restart.enabled`"),
        ("ladder: [in-place-restart, reqeue]\n", ", line 1: ladder: `reqeue` is not one of"),
        ("max_restarts: -1\n", ", line 1: max_restarts: -1 is out of range: 0 to 128"),
        ("\n\nmax_restarts: 129\n", ", line 3: max_restarts: 129 is out of range: 0 to 128"),
        ("max_restarts: 1.5\n", ", line 1: max_restarts: `1.5` is not a whole number"),
        ("max_restarts: [1]\n", ", line 1: max_restarts: "),
        ("max_restarts:\n  a: 1\n", ", line 1: max_restarts: "),
        ("stop: 20s\n", ", line 1: there is no setting `stop`"),
        ("max_restarts: 5\nlauncher: srun\nmax_restarts: 6\n", ", line 3: `max_restarts` is here twice"),
        ("stop:\n  grace: 5s\nstop:\n  kill_wait: 5s\n", ", line 3: `stop` is here twice"),
        ("a: b: c\n", ", line 1: not YAML"),
        ("max_restarts: 5\n\tstop: 1\n", ", line 2: not YAML"),
        ("max_restarts: [1\nstop: {", ": not YAML"),
        ("- max_restarts\n", ": a policy is a mapping"),
        ("just words\n", ": a policy is a mapping"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
        ("max_restarts: !!python/object/apply:os.system [echo]\n", "not YAML"),
        ("max_restarts: *nowhere\n", ", line 1: not YAML"),
        ("profile: modelart\n", ", line 1: there is no profile `modelart`; did you mean `modelarts`?"),
        ("launcher: ssh\n", ", line 1: launcher: `ssh` is not one of auto, srun, local"),
        ("warning:\n  signals: [TERM, KILL]\n", ", line 2: warning.signals: `KILL` is not one of"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_the_mend(policy: Write, text: str, said: str) -> None:
    assert said in complaint(policy(text))


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: 1\n",
        "1: 2\n",
        "null: 1\n",
        "true: 1\n",
        "&a a: *a\n",
        "a: &a [*a]\n",
        "<<: {max_restart: 5}\n",
        "? {a: b}\n: 1\n",
    ],
)
def test_yaml_that_is_no_policy_is_named_too(policy: Write, text: str) -> None:
    complaint(policy(text))


READER = """
import sys
from pathlib import Path
from ftslurm.errors import PolicyError
from ftslurm.config.settings_files import policy_layers
from ftslurm.config.fault_lookup import fault_lookup
try:
    policy_layers(Path(sys.argv[1]))
except PolicyError as error:
    print(error)
"""


# Names: pytest hands them to every child in one variable, which has its limit.
@pytest.mark.parametrize(
    "text", ["x: " + "[" * 100_000, "x: " + "{a: " * 20_000, "- " * 100_000], ids=["lists", "mappings", "dashes"]
)
def test_yaml_without_bottom_is_refused(policy: Write, text: str) -> None:
    """In a process of its own: a C parser that recurses may end in a segmentation fault."""
    path = policy(text)
    done = subprocess.run([sys.executable, "-c", READER, str(path)], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-300:]}"
    assert done.stdout.startswith(str(path))


def test_the_first_mistake_in_the_file_is_the_one_that_is_named(policy: Write) -> None:
    assert ", line 1: " in complaint(policy("max_restarts: -1\nstop:\n  grace: 20\nlanucher: srun\n"))


@pytest.mark.parametrize("leaf", ["nodes.address", "python", "devices.user_induced"])
def test_a_name_with_nothing_behind_it_sets_nothing_of_the_name_None(policy: Write, leaf: str) -> None:
    """`address:` alone is YAML for null; an address or interpreter called `None` is what nobody meant."""
    *folders, name = leaf.split(".")
    path = policy("".join(f"{folder}:\n  " for folder in folders) + f"{name}:\n")
    try:
        value = LEAVES[leaf].of(in_force(path).settings)
    except PolicyError:
        return
    assert value in ("", ())


def test_a_policy_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "gone.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(PolicyError, match=why) as caught:
            in_force(path)
        assert str(path) in str(caught.value)


def test_a_file_that_is_no_text_or_far_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match="UTF-8"):
        policy_layers(path)
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(PolicyError, match="1 MiB"):
        policy_layers(path)


def test_an_endless_file_is_refused_and_not_read_to_its_end() -> None:
    with pytest.raises(PolicyError):
        policy_layers(Path("/dev/zero"))


# --- layers


def test_the_layers_lie_as_the_contract_says(tmp_path: Path, policy: Write) -> None:
    """Default, site, profile, policy, comment, annotations, environment, command line: the later wins."""
    site, notes = tmp_path / "site.yaml", tmp_path / "job.json"
    site.write_text("max_restarts: 1\nstop:\n  grace: 1s\n")
    notes.write_text('{"fault-tolerance/job-retry-num": "4"}')
    path = policy("max_restarts: 2\n")
    env = {"FTRUN_MAX_RESTARTS": "5"}
    comment = '{"fault-tolerance/job-retry-num": "3"}'
    option = {"max_restarts": ("6", "--ft-max-restarts")}
    stack = [
        (SettingsAsked(), {}, "", 1, f"{site}, line 1"),
        (SettingsAsked(policy=str(path)), {}, "", 2, f"{path}, line 1"),
        (SettingsAsked(policy=str(path)), {}, comment, 3, "the job's comment"),
        (SettingsAsked(policy=str(path), annotations=str(notes)), {}, comment, 4, str(notes)),
        (SettingsAsked(policy=str(path), annotations=str(notes)), env, comment, 5, "environment FTRUN_MAX_RESTARTS"),
        (SettingsAsked(policy=str(path), annotations=str(notes), values=option), env, comment, 6, "--ft-max-restarts"),
    ]
    for request, variables, note, restarts, place in stack:
        resolved = settings_in_force(request, variables, note, site)
        assert (resolved.settings.max_restarts, resolved.places["max_restarts"]) == (restarts, place)
        assert resolved.settings.stop.grace_s == 1.0


def test_variables_may_name_the_files_and_options_beat_them(tmp_path: Path, policy: Write) -> None:
    path, other = policy("max_restarts: 2\n"), tmp_path / "other.yaml"
    other.write_text("max_restarts: 3\n")
    env = {"FTRUN_POLICY": str(path)}
    assert settings_in_force(SettingsAsked(), env, site=NO_SITE).settings.max_restarts == 2
    assert settings_in_force(SettingsAsked(policy=str(other)), env, site=NO_SITE).settings.max_restarts == 3


def test_a_mistake_anywhere_names_that_place(tmp_path: Path) -> None:
    notes = tmp_path / "job.json"
    notes.write_text('{"fault-tolerance/job-retry-num": "129"}')
    for request, env, comment, place in (
        (SettingsAsked(annotations=str(notes)), {}, "", str(notes)),
        (SettingsAsked(), {"FTRUN_ANNOTATIONS": str(notes)}, "", str(notes)),
        (SettingsAsked(), {}, notes.read_text(), "the job's comment"),
        (SettingsAsked(), {"FTRUN_STOP_GRACE": "20"}, "", "environment FTRUN_STOP_GRACE"),
        (SettingsAsked(values={"stop.grace": ("20", "--ft-grace")}), {}, "", "--ft-grace"),
        (SettingsAsked(values={"stop.gracee": ("20s", "--ft-set stop.gracee")}), {}, "", "--ft-set stop.gracee"),
        (SettingsAsked(profile="modelart"), {}, "", "--ft-profile"),
        (SettingsAsked(), {"FTRUN_PROFILE": "modelart"}, "", "FTRUN_PROFILE"),
    ):
        with pytest.raises(PolicyError) as caught:
            settings_in_force(request, env, comment, NO_SITE)
        assert str(caught.value).startswith(place), str(caught.value)


def test_an_annotations_file_that_is_not_there_is_named() -> None:
    with pytest.raises(PolicyError, match=r"/nonexistent/job\.json cannot be read"):
        settings_in_force(SettingsAsked(annotations="/nonexistent/job.json"), {}, site=NO_SITE)


@pytest.mark.parametrize("comment", ["", "nightly run of fault-tolerance/ tests", '{"owner": "me"}', "{not json"])
def test_a_comment_about_something_else_is_nobody_s_mistake(comment: str) -> None:
    assert set(settings_in_force(SettingsAsked(), {}, comment, NO_SITE).places.values()) == {"default"}


# --- profiles


@pytest.mark.parametrize("name", ["modelarts", "ft-launcher"])
def test_profiles_ship_and_are_right(name: str) -> None:
    (layer,) = profile_layers(name, "here")
    assert layer.values and all(place.startswith(f"profile {name}, line ") for place in layer.places.values())
    assert settings_in_force(SettingsAsked(profile=name), {}, site=NO_SITE)


def test_the_profile_modelarts_is_the_ladder_of_the_seed() -> None:
    s = settings_in_force(SettingsAsked(profile="modelarts"), {}, site=NO_SITE).settings
    assert (
        s.in_place_restart.enabled
        and s.hang_restart.enabled
        and s.node_replacement.enabled
        and s.isolated_requeue.enabled
        and s.unconditional_requeue.enabled
    )
    assert (s.in_place_restart.same_code_limit, s.in_place_restart.same_code_window_s, s.unconditional_requeue.in_a_row) == (
        3,
        86400.0,
        3,
    )


def test_the_profile_ft_launcher_answers_hangs_as_ft_launcher_does() -> None:
    settings = settings_in_force(SettingsAsked(profile="ft-launcher"), {}, site=NO_SITE).settings
    assert settings.hang_restart.enabled and not (settings.hang.detection or settings.hang.c4d)


@pytest.mark.parametrize(("asked", "allowed"), [(None, 0), ("5", 5), ("1", 1), ("0", 0)])
def test_max_restarts_counts_all_restarts_under_the_profile_ft_launcher(asked: str | None, allowed: int) -> None:
    values = {"max_restarts": (asked, "--ft-max-restarts")} if asked else {}
    resolved = settings_in_force(SettingsAsked(profile="ft-launcher", values=values), {}, site=NO_SITE)
    assert resolved.settings.max_job_restarts == allowed
    assert resolved.places["max_job_restarts"].startswith("--ft-max-restarts" if asked else "profile ft-launcher")


def test_crash_restarts_that_are_allowed_count_under_it() -> None:
    values = {"rungs.in-place-restart.crash_restarts": ("2", "--ft-set")}
    assert settings_in_force(SettingsAsked(profile="ft-launcher", values=values), {}, site=NO_SITE).settings.max_job_restarts == 2


def test_a_policy_may_stand_on_a_profile(policy: Write) -> None:
    resolved = in_force(policy("max_restarts: 2\nprofile: ft-launcher\n"))
    assert (resolved.settings.max_restarts, resolved.settings.in_place_restart.crash_restarts) == (2, 2)
    assert resolved.places["rungs.hang-restart.in_a_row"].startswith("profile ft-launcher, line ")


# --- anything at all


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.text(alphabet="ab: -[]{}\n\t\"'&*!|>%@#,?0\x00é", max_size=40)
    | st.dictionaries(
        st.sampled_from(["max_restarts", "stop", "rungs", "ladder", "profile", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=3,
    ).map(json.dumps)
)
def test_any_text_is_a_policy_or_a_policy_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    try:
        assert in_force(path)
    except PolicyError as error:
        assert str(error).startswith(str(path))


@pytest.mark.parametrize("written", ["80E01801", "0x80e01801", "80e01801"])
def test_a_code_that_the_policy_calls_user_induced_is_found_however_it_is_written(policy: Write, written: str) -> None:
    codes = in_force(policy(f'devices:\n  user_induced: ["{written}"]\n')).settings.devices.user_induced
    assert fault_lookup(codes)("ascend", "80E01801", Severity.MAJOR).user_induced
