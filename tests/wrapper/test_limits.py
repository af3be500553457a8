"""Limits of the site: what a user's layer may not override, and the sentence that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.config.settings_files import SettingsAsked, policy_layers, settings_in_force
from ftslurm.errors import PolicyError
from ftslurm.launchers.srun_options import Component
from ftslurm.model.settings.tree import LEAVES, Resolved
from ftslurm.wrapper.controller.survey import Order, request_of

LIMITS = """\
max_restarts: 6
limits:
  at_most:
    max_restarts: 20
    max_job_restarts: 40
    requeue.cleanup_grace: 10m
    hang:
      detect_time: 2h
    slurm:
      patience: 1h
    rungs.node-replacement.budget: 4
  never:
    mode: [async, independent]
    rungs.unconditional-requeue.enabled: true
  always:
    nodes.secret: file
    nodes:
      ports: 60000-60100
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(LIMITS)
    return path


def in_force(site: Path, **values: object) -> Resolved:
    return settings_in_force(
        SettingsAsked(values={name: (raw, f"--ft-set {name}") for name, raw in values.items()}), {}, site=site
    )


def test_defaults_stay_defaults_and_limits_are_in_force_where_nobody_says_anything(site: Path) -> None:
    resolved = in_force(site)
    found = {name: LEAVES[name].of(resolved.settings) for name in LEAVES}
    assert (found["max_restarts"], found["max_job_restarts"], found["mode"]) == (6, 40, "sync")
    assert (found["nodes.ports"], found["rungs.unconditional-requeue.enabled"]) == ((60000, 60100), False)
    assert resolved.places["max_job_restarts"] == f"{site}, line 5", "explain says whose it is"
    assert resolved.limits["max_restarts"] == f"at most 20 ({site}, line 4)"
    assert in_force(site, max_restarts=20).settings.max_restarts == 20, "up to the limit it is the user's"
    assert in_force(site, **{"slurm.patience": 0}).settings.slurm.patience_s == 0, "not at all is the least"
    assert in_force(site, mode="min-healthy").settings.mode == "min-healthy"


@pytest.mark.parametrize(
    ("name", "raw", "line", "words"),
    [
        ("max_restarts", 21, 4, "max_restarts 21: this site allows at most 20"),
        ("max_job_restarts", -1, 5, "max_job_restarts -1: this site allows at most 40"),
        ("requeue.cleanup_grace", -1, 6, "at most 10m"),
        ("hang.detect_time", "3h", 8, "this site allows at most 2h"),
        ("hang.detect_time", "0", 8, "this site allows at most 2h"),
        ("slurm.patience", "2h", 10, "this site allows at most 1h"),
        ("mode", "independent", 13, "mode independent: this site allows never async or independent"),
        ("rungs.unconditional-requeue.enabled", "true", 14, "never true"),
        ("nodes.secret", "munge", 16, "always file"),
        ("nodes.ports", "50000-50100", 18, "always 60000-60100"),
    ],
)
def test_who_goes_beyond_is_told_both_places_in_one_sentence(site: Path, name: str, raw: object, line: int, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        settings_in_force(SettingsAsked(values={name: (raw, f"--ft-set {name}")}), {}, site=site)
    said = str(caught.value)
    assert said.startswith(f"--ft-set {name}: {name} ") and words in said and f"({site}, line {line})" in said
    assert "\n" not in said and caught.value.hint and caught.value.exit_status == 65


def test_no_layer_passes_a_limit_also_not_by_what_it_implies(site: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("nodes:\n  min: 2\n")  # implies a budget of 8
    runs_on = request_of(Order((Component(("--kill-on-bad-exit=0",), ("train",)),), SettingsAsked(), {}))
    for request, env in (
        (runs_on, {}),
        (SettingsAsked(policy=str(policy)), {}),
        (SettingsAsked(), {"FTRUN_MAX_RESTARTS": "50"}),
        (SettingsAsked(profile="aimaster-async"), {}),
    ):
        with pytest.raises(PolicyError, match="this site allows"):
            settings_in_force(request, env, site=site)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limits: 5", "line 1: limits: not a mapping"),
        ("limits:\n  most:\n    max_restarts: 5", "line 3: limits: `most` is no limit; did you mean `at_most`?"),
        ("limits:\n  at_most:\n    max_restart: 5", "line 3: there is no setting `max_restart`"),
        ("limits:\n  at_most:\n    mode: sync", "line 3: mode is no number"),
        ("limits:\n  at_most:\n    max_restarts: many", "line 3: max_restarts: `many` is not a whole number"),
        ("limits:\n  never:\n    ladder: [fail]", "line 3: ladder is a list"),
        ("limits:\n  never:\n    mode: sync", "default: mode sync: this site allows never sync"),
    ],
)
def test_a_mistake_in_them_names_the_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        in_force(tmp_path / "site.yaml")
    assert words in str(caught.value)


def test_a_user_s_policy_has_none(site: Path) -> None:
    with pytest.raises(PolicyError, match=r"line 4: limits count in the site's policy alone .*/etc/ftslurm/policy.yaml"):
        policy_layers(site)


def test_a_site_s_policy_that_cannot_be_read_is_not_one_without_limits(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").symlink_to("nowhere")
    with pytest.raises(PolicyError, match=r"the site's policy .*/site.yaml cannot be read: No such file"):
        in_force(tmp_path / "site.yaml")
    assert in_force(tmp_path / "site.yaml" / "below").settings.max_restarts == 8, "there is none"
    with pytest.raises(PolicyError, match="cannot be read: File name too long"):
        in_force(tmp_path / ("n" * 300))
