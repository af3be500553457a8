"""The parsers of what people write: policies, annotations, variables, command lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ftslurm.config.settings_files import SettingsAsked, policy_layers, settings_in_force
from ftslurm.launchers.placement import parse_multi_prog
from ftslurm.launchers.srun_options import (
    CommandLine,
    has_flag,
    join_components,
    option_value,
    parse_options,
    split_command_line,
    without,
)
from ftslurm.model.settings import dialects
from ftslurm.model.settings.kinds import Layer, value_in_words
from ftslurm.model.settings.tree import LEAVES, Resolved, Settings, env_name, from_environment, parse_leaf, resolve, with_values
from tests.fuzz.files import written
from tests.fuzz.hold import Parser
from tests.fuzz.inputs import (
    YAML_PITFALLS,
    YAML_WORDS,
    argvs,
    as_bytes,
    as_json,
    hostile_text,
    json_values,
    mutated,
    mutated_env,
    mutated_trees,
    policy_laughs,
)

PROFILES = Path(__file__).parents[2] / "ftslurm/config/profiles"
NO_SITE = Path("/nonexistent/policy.yaml")

# --- what people write

WHOLE_POLICY = "".join(f'"{name}": "{value_in_words(leaf, leaf.default)}"\n' for name, leaf in LEAVES.items() if "." not in name)
POLICY_TEXTS = [path.read_text() for path in sorted(PROFILES.glob("*.yaml"))] + [
    WHOLE_POLICY,
    "max_restarts: 5\nstop:\n  grace: 10s\nrungs:\n  hang-restart:\n    enabled: on\nprofile: modelarts\n",
    "stop: &s\n  grace: &g 5s\n  kill_wait: *g\nladder: [in-place-restart, fail]\nretry: {keywords: [a, 'b c']}\n",
]
POLICIES = mutated(POLICY_TEXTS, YAML_WORDS + YAML_PITFALLS)
POLICY_FILES = as_bytes(POLICIES | policy_laughs | as_json(mutated_trees([{"stop": {"grace": "5s"}, "max_restarts": 5}])))
ANNOTATIONS: list[Any] = [
    {dialects.RETRY: "8", dialects.UNCONDITIONAL: "true", dialects.HANG: "false", dialects.POD: 3},
    {"kind": "job", "metadata": {"annotations": {dialects.RETRY: 8, dialects.HANG: True}}},
]
ANNOTATION_TEXTS = as_json(mutated_trees(ANNOTATIONS)) | mutated(
    [json.dumps(tree) for tree in ANNOTATIONS], (f'"{dialects.RETRY}": "9"', "[" * 2000, '{"metadata":' * 800, "NaN")
)
FLAGS = mutated(
    [
        "--job-execution-mode=Async --enable-job-restart=True --max-num-of-job-restart=5 --fault-tolerant-policy OnFailure",
        "--c4d-common-envs=NCCL_DEBUG=INFO,A=1 --max-tolerated-failure-rate 0.5 --job-hang-interval '1800'",
    ],
    (*(f"--{name}" for name in dialects.FLAGS), "=", "''", "--", "-1", "nan", "inf", "1e400"),
)
VARIABLES = [env_name(name) for name in LEAVES]
FTRUN = mutated_env(
    [{}, {"FTRUN_MAX_RESTARTS": "5", "FTRUN_STOP_GRACE": "10s", "HOME": "/root"}, {"FTRUN_AIMASTER": "--enable-job-restart=True"},
     {"FTRUN_PROFILE": "modelarts", "FTRUN_LADDER": "in-place-restart,fail", "FTRUN_RETRY_FAILURE_RATE": "0.5"}],
    [*VARIABLES, "FTRUN_PROFILE", "FTRUN_AIMASTER", "FTRUN_VERBOSE", "FTRUN_", "FTRUN_²"],
)  # fmt: skip
VALUES = (
    json_values
    | hostile_text
    | st.dates()
    | st.datetimes()
    | st.binary(max_size=4)
    | st.builds(lambda number, unit: f"{number}{unit}", st.floats() | st.integers() | hostile_text, st.sampled_from("smhd"))
    | st.sampled_from(
        ("ms", "1ms", "nans", "infs", "never", " 5 s", "٣s", "5²s", "sync", "TERM", "on", "0x10", "1e400", "-1", "0.5")
    )
)


def _policy(data: bytes) -> tuple[list[Layer], Resolved]:
    path = written(data, "policy.yaml")
    return policy_layers(path), settings_in_force(SettingsAsked(policy=str(path)), {}, site=NO_SITE)


def _annotated(text: str) -> tuple[Layer, Resolved]:
    dialects.looks_like(text)
    layer = dialects.from_annotations(text, "job.json")
    return layer, resolve([layer])


def _annotations_file(data: bytes) -> Resolved:
    return settings_in_force(SettingsAsked(annotations=str(written(data, "job.json"))), {}, site=NO_SITE)


def _flags(text: str) -> tuple[Layer, Resolved]:
    layer = dialects.from_aimaster(text, "--ft-aimaster")
    return layer, resolve([layer])


def _leaf(given: tuple[str, Any]) -> tuple[Settings, str]:
    name, raw = given
    value = parse_leaf(name, raw, "here")
    return with_values(Settings(), {name: value}), value_in_words(LEAVES[name], value)


PEOPLE = [
    Parser("policy", POLICY_FILES, _policy, tuple[list[Layer], Resolved]),
    Parser("value of a setting", st.tuples(st.sampled_from(sorted(LEAVES)), VALUES), _leaf, tuple[Settings, str]),
    Parser("annotations", ANNOTATION_TEXTS, _annotated, tuple[Layer, Resolved]),
    Parser("annotations file", as_bytes(ANNOTATION_TEXTS), _annotations_file, Resolved),
    Parser("flags of AIMaster", FLAGS, _flags, tuple[Layer, Resolved]),
    Parser("FTRUN_*", FTRUN, lambda env: from_environment(env), Layer),
    Parser("FTRUN_*, in force", FTRUN, lambda env: settings_in_force(SettingsAsked(), env, site=NO_SITE), Resolved),
]

# --- command lines of srun

SRUN_WORDS = (
    "-N", "-N2", "-lN2", "--nodes", "--nodes=2", "--nod", "--ntasks=4", "--", ":", "-", "-K", "-K1", "--kill-on-bad-exit=1", "--pty",
    "--multi-prog", "--ft-policy", "--ft-policy=x", "--ft-verbose", "--ft-", "--ft-=", "--=", "--=x", "-²", "-NN", "--cpu_bind", "-x",
    "--exclude=n[1-2]", "-w", "n[1-999999999]", "python", "train.py", "--lr", "--container-image=a:b", "--unheard-of", "-nx",
)  # fmt: skip
ARGVS = argvs(
    [
        ["-N", "2", "--ntasks-per-node=4", "-l", "python", "train.py", "--lr", "1e-3"],
        ["--ft-policy", "p.yaml", "-N2", ":", "--ft-verbose", "-n1", "--", "-x", ":"],
        ["--export=ALL,A='b,c'", "-w", "n[1-2]", "--distribution=cyclic", "./a.out"],
    ],
    SRUN_WORDS,
)
FT_FLAGS = ("verbose", "--ft-dry-run")


def _split(argv: list[str]) -> CommandLine:
    line = split_command_line(argv, FT_FLAGS)
    words = join_components(line.components)
    assert split_command_line(words, FT_FLAGS).components == line.components, "what was joined reads otherwise"
    return line


def _options(argv: list[str]) -> tuple[tuple[tuple[str, str | None], ...], str | None, bool, tuple[str, ...]]:
    left = without(argv, "N", "ntasks")
    assert option_value(left, "nodes") is None
    return parse_options(argv), option_value(argv, "N", "w"), has_flag(argv, "label", "K"), left


PROGRAMS = mutated(
    ["# comment\n0-3,7 ./a.out %t %o\n* echo 'it''s' \\\n  b\\ c\n", "*  hostname\n", "0 a\n1-2 b '%t'\n3 c %% %x\n"],
    ("*", "0-999999999", "3-0", "²", "٣", "9" * 5000, "0-" + "9" * 5000, "\\", "'", "%", "%t", ",", "-", "\\\n"),
)
PLACEMENT = Mapping[int, tuple[str, ...]]
OPTIONS = argvs(
    [["-N", "2", "--ntasks-per-node=4", "-l"], ["-lN2", "--cpu_bind", "none", "--pty", "-K1", "--unheard-of"], []],
    [word for word in SRUN_WORDS if word.startswith("-")],
)
SRUN = [
    Parser("srun command line", ARGVS, _split, CommandLine),
    Parser("srun options", OPTIONS, _options, tuple[tuple[tuple[str, str | None], ...], str | None, bool, tuple[str, ...]]),
    Parser("multi-prog file", PROGRAMS, lambda text: parse_multi_prog(text, "prog.conf", ("-v",), 8), PLACEMENT),
]
