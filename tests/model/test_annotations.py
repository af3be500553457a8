"""The four annotations of ModelArts, as they stand in a file or in the job's comment. Source: ModelArts, fault recovery of training jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import PolicyError
from ftslurm.model.settings.dialects import HANG, POD, RESUME, RETRY, UNCONDITIONAL, looks_like, unread
from ftslurm.model.settings.dialects import from_annotations as parse
from ftslurm.model.settings.tree import Settings, resolve

SEED = (
    '{ "kind": "job", "metadata": { "annotations": { "fault-tolerance/job-retry-num": "8", '
    '"fault-tolerance/job-unconditional-retry": "true", "fault-tolerance/hang-retry": "true", '
    '"fault-tolerance/pod-retry-num": "3" } } }'
)


def in_force(annotations: dict[str, Any] | str) -> Settings:
    text = annotations if isinstance(annotations, str) else json.dumps(annotations)
    return resolve([parse(text, "job.json")]).settings


def switches(s: Settings) -> tuple[bool, bool, bool, bool, bool]:
    return (
        s.in_place_restart.enabled,
        s.isolated_requeue.enabled,
        s.unconditional_requeue.enabled,
        s.hang_restart.enabled,
        s.node_replacement.enabled,
    )


def test_the_example_of_the_seed_switches_everything_on() -> None:
    settings = in_force(SEED)
    assert switches(settings) == (True,) * 5
    assert (settings.max_restarts, settings.node_replacement.budget) == (8, 3)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (True, True, False, False, False)),
        ({UNCONDITIONAL: "true"}, (True, True, True, False, False)),
        ({UNCONDITIONAL: "false"}, (True, True, False, False, False)),
        ({HANG: "true"}, (True, True, False, True, False)),
        ({POD: "3"}, (True, True, False, False, True)),
    ],
)
def test_an_annotation_switches_on_what_it_names_and_nothing_else(more: dict[str, str], expected: tuple[bool, ...]) -> None:
    assert switches(in_force({RETRY: "8", **more})) == expected


@pytest.mark.parametrize(
    ("more", "policy"), [({}, "Evidence"), ({UNCONDITIONAL: "true"}, "OnFailure"), ({UNCONDITIONAL: "false"}, "Evidence")]
)
def test_unconditional_is_meant_for_every_failure(more: dict[str, str], policy: str) -> None:
    assert in_force({RETRY: "8", **more}).retry.policy == policy


@pytest.mark.parametrize("number", ["1", "128", 1, 128])
def test_max_restarts_may_be_1_to_128(number: object) -> None:
    assert in_force({RETRY: number}).max_restarts == int(str(number))


@pytest.mark.parametrize("number", ["0", "129", "-1", 0, 129, "1.5", "eight", "", None, True, [8], {}, 8.0])
def test_any_other_max_restarts_is_refused_with_place_and_range(number: object) -> None:
    with pytest.raises(PolicyError, match=r"job\.json: fault-tolerance/job-retry-num: ") as caught:
        in_force({RETRY: number})
    assert caught.value.exit_status == 65 and caught.value.hint


@pytest.mark.parametrize("key", [UNCONDITIONAL, HANG, POD])
def test_the_others_work_only_with_job_retry_num(key: str) -> None:
    with pytest.raises(PolicyError, match=f"{key} works only together with {RETRY}"):
        in_force({key: "true" if key != POD else "3"})


@pytest.mark.parametrize("value", ["maybe", "", 2, None])
def test_a_switch_is_true_or_false(value: object) -> None:
    with pytest.raises(PolicyError, match="neither true nor false"):
        in_force({RETRY: "8", HANG: value})


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(
        PolicyError, match="unknown annotation fault-tolerance/job-retry-nun; did you mean `fault-tolerance/job-retry-num`"
    ):
        in_force({"fault-tolerance/job-retry-nun": "8"})


@pytest.mark.parametrize("text", ["", "{", "[]", "8", "null", '{"metadata": {"annotations": []}}', "[" * 100_000])
def test_what_is_no_json_object_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(PolicyError, match=r"^job\.json: ") as caught:
        in_force(text)
    assert "\n" not in str(caught.value)


def test_other_people_s_annotations_are_not_ours() -> None:
    assert in_force({"example.com/owner": "me", "metadata": "not a map"}) == Settings()
    assert in_force('{"metadata": {"name": "x"}}') == Settings()


@pytest.mark.parametrize(
    ("comment", "ours"),
    [
        (SEED, True),
        (json.dumps({RETRY: "8"}), True),
        ("", False),
        ("nightly run", False),
        ('{"owner": "me"}', False),
        (f"see {RETRY}", False),
    ],
)
def test_only_a_comment_that_carries_annotations_is_read(comment: str, ours: bool) -> None:
    assert looks_like(comment) is ours


@given(
    st.text(max_size=40)
    | st.recursive(
        st.none() | st.text(max_size=5),
        lambda inner: st.dictionaries(st.sampled_from([RETRY, HANG, POD, "metadata", "annotations", "x"]), inner, max_size=3),
        max_leaves=6,
    ).map(json.dumps)
)
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        in_force(text)
    except PolicyError as error:
        assert str(error).startswith("job.json: ")


@pytest.mark.parametrize("time", ["auto", "5m"])
def test_to_go_on_at_the_time_limit_needs_no_other(time: str) -> None:
    alone = parse(json.dumps({RESUME: time}), "here")
    assert dict(alone.values) == {"time_limit.resume": time}
    both = parse(json.dumps({RESUME: time, RETRY: "8"}), "here")
    assert (both.values["time_limit.resume"], both.values["max_restarts"]) == (time, 8)
    with pytest.raises(PolicyError, match="resume-at-limit"):
        parse(json.dumps({RESUME: "soon"}), "here")


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        (f"{RETRY}:8", True),  # --comment={"fault-tolerance/job-retry-num":"8"} of a shell
        (f"'{{{RETRY}:8}}'", True),
        (json.dumps({RETRY: "8"}), False),
        ("see docs/fault-tolerance/notes", False),
        ("", False),
    ],
)
def test_a_comment_that_a_shell_has_spoilt_is_told(comment: str, told: bool) -> None:
    assert bool(unread(comment)) is told
