"""The doors, as a user stands before them: what is printed, and the exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from ftslurm.cli.ftrun import FLAGS
from ftslurm.cli.ftrun_options import options, parse_ftrun, values_of
from ftslurm.model.settings.tree import LEAVES

TIMEOUT_S = 120
REPOSITORY = Path(__file__).parents[2]


def command(module: str, *argv: str, home: Path, given: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """`ftrun` or `ftslurm` in a process of its own, outside any allocation."""
    return subprocess.run(
        [sys.executable, "-m", module, *argv],
        env={**clean_environ(), "HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        **({"stdin": subprocess.DEVNULL} if given is None else {"input": given}),
        cwd=REPOSITORY,
    )


def clean_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "FTRUN_", "FTSLURM_"))}


def ftrun(*argv: str, home: Path, given: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return command("ftslurm", *argv, home=home, given=given, **env)


def ftslurm(*argv: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return command("ftslurm.cli.ftslurm", *argv, home=home, **env)


def test_the_flags_read_without_click_are_those_of_click() -> None:
    assert {p.opts[0] for p in options.params if isinstance(p, click.Option) and (p.is_flag or p.flag_value == "auto")} == FLAGS


def test_words_worth_another_try_come_from_a_flag_as_they_are() -> None:
    asked = parse_ftrun(["--ft-retry-keyword=connect timeout", "--ft-retry-keyword=a, b"])
    assert values_of(asked) == {"retry.keywords": (("connect timeout", "a, b"), "--ft-retry-keyword")}
    assert values_of(parse_ftrun([])) == {}


def test_help_names_every_option_and_ends_with_0(tmp_path: Path) -> None:
    done = ftrun("--ft-help", home=tmp_path)
    assert done.returncode == 0
    assert all(p.opts[0] in done.stdout for p in options.params if isinstance(p, click.Option))


@pytest.mark.parametrize(
    ("argv", "env", "status", "words"),
    [
        (("--ft-max-restart", "3", "true"), {}, 64, "--ft-max-restarts"),
        (("--ft-max-restarts", "129", "true"), {}, 65, "0 to 128"),
        (("--ft-set", "stop.grace=20x", "true"), {}, 65, "20s"),
        (("--ft-set", "stop.grace", "true"), {}, 64, "NAME=VALUE"),
        (("--ft-set", "stop.grce=20s", "true"), {}, 65, "did you mean `stop.grace`"),
        (("--ft-policy", "/nonexistent/policy.yaml", "true"), {}, 65, "/nonexistent/policy.yaml"),
        (("true",), {"FTRUN_MAX_RESTARTS": "-1"}, 65, "environment FTRUN_MAX_RESTARTS"),
        (("true",), {"FTRUN_MAX_RESTART": "3"}, 65, "FTRUN_MAX_RESTARTS"),
        (("--ft-launcher", "srun", "true"), {}, 64, "needs Slurm"),
        (("--nproc-per-node=4", "true"), {}, 64, "`ft_launcher --nproc-per-node ...` takes it"),
        (("-n2", "--max_restarts", "3", "true"), {}, 64, "--max_restarts is an option of torchrun and ft_launcher"),
        (("-n1", "true", ":", "-n1", "true"), {}, 64, "heterogeneous"),
        (("-N3", "--ft-local-nodes", "2", "true"), {}, 64, "3 nodes requested"),
        (("true",), {"FTSLURM_STATE_DIR": "/proc/nowhere"}, 73, "/proc/nowhere"),
    ],
)
def test_bad_input_gets_one_sentence_and_a_status_of_its_own(
    tmp_path: Path, argv: tuple[str, ...], env: dict[str, str], status: int, words: str
) -> None:
    done = ftrun(*argv, home=tmp_path, **env)
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("ftrun: ")


def test_a_folder_that_somebody_removed_is_one_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$2" -m ftslurm -n1 true'
    done = subprocess.run(
        ["sh", "-c", script, "sh", gone, sys.executable],
        env=os.environ | {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 71 and "current folder" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_dry_run_prints_what_would_run_and_makes_nothing(tmp_path: Path) -> None:
    done = ftrun("--ft-dry-run", "-N2", "python3", "train.py", "--ft-nothing-of-ours", home=tmp_path)
    assert done.returncode == 0 and "python3 train.py --ft-nothing-of-ours" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_crash_is_told_by_status_and_history(tmp_path: Path) -> None:
    one_fails = "[ $SLURM_PROCID = 1 ] && exit 3; exec sleep 600"  # both, and which is heard of first would be chance
    assert ftrun("-n2", "sh", "-c", one_fails, home=tmp_path, FTRUN_MAX_RESTARTS="1").returncode == 3
    status = json.loads(ftslurm("status", "1", "--json", home=tmp_path).stdout)
    assert (status["attempt"], status["rung"], status["left"]["max_restarts"]) == (3, "fail", [0, 1])
    attempts = json.loads(ftslurm("history", "1", "--json", home=tmp_path).stdout)["attempts"]
    assert [attempt["remedies"][0]["decided"]["rung"] for attempt in attempts] == [
        "in-place-restart",
        "unconditional-requeue",
        "fail",
    ]
    told = ftslurm("history", "1", home=tmp_path).stdout
    assert "the 1 requeue (max_restarts) is spent" in told
    assert ftrun("true", home=tmp_path).returncode == 0
    latest = ftslurm("history", home=tmp_path).stdout
    assert told in latest and latest.index("job 1 on") < latest.index("job 2 on"), "without a number, of all that ran today"
    assert [each["job"]["job"] for each in json.loads(ftslurm("history", "--json", home=tmp_path).stdout)] == ["1", "2"]
    none = ftslurm("history", "--since", "2099-01-01", home=tmp_path)
    assert "no job ran since 2099-01-01" in none.stderr and "job 1 on" not in none.stdout and "job 2 on" in none.stdout


def test_ranks_whose_input_is_spent_are_not_started_again(tmp_path: Path) -> None:
    """A second start would find the end of the input, and a program without a line ends with 0."""
    program = "import sys; print('ran'); sys.exit(3)\n"
    (tmp_path / "program").write_text(program)
    for done in (
        ftrun("python3", "-", home=tmp_path, given=program),
        ftrun("-i", str(tmp_path / "program"), "python3", "-", home=tmp_path),
    ):
        assert (done.returncode, done.stdout) == (3, "ran\n")
        assert "nothing more: what its ranks read from standard input cannot be read again" in done.stderr


def test_who_reads_nothing_is_started_again_in_place(tmp_path: Path) -> None:
    assert "in-place-restart" in ftrun("sh", "-c", "exit 3", home=tmp_path, given="", FTRUN_MAX_RESTARTS="0").stderr
    at_once = ftrun("-i", "none", "sh", "-c", "exit 3", home=tmp_path, given="unread", FTRUN_MAX_RESTARTS="0")
    assert "in-place-restart" in at_once.stderr


def test_explain_names_every_setting_and_where_it_comes_from(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("profile: modelarts\nstop:\n  grace: 5s\n")
    done = ftslurm("explain", "--policy", str(policy), "--json", home=tmp_path, FTRUN_MAX_RESTARTS="7")
    settings = json.loads(done.stdout)["settings"]
    assert settings.keys() == LEAVES.keys()
    assert settings["stop.grace"]["from"] == f"{policy}, line 3"
    assert settings["max_restarts"] == settings["max_restarts"] | {"value": 7, "from": "environment FTRUN_MAX_RESTARTS"}
    assert settings["rungs.node-replacement.budget"]["from"].startswith("profile modelarts")


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ('"$@" | true; exit ${PIPESTATUS[0]}', 0, ""),
        ('"$@" >/dev/full', 73, "ftslurm: the output cannot be written: No space left on device\n"),
        ('"$@" >&-', 0, ""),
    ],
)
@pytest.mark.parametrize("verb", [("explain",), ("status", "1"), ("history", "1", "--json")])
def test_an_output_that_takes_nothing_is_no_traceback(
    once_failed: Path, verb: tuple[str, ...], line: str, status: int, said: str
) -> None:
    argv = [sys.executable, "-c", "from ftslurm.cli.doors import ftslurm; ftslurm()", *verb]
    done = subprocess.run(
        ["bash", "-c", line, "bash", *argv],
        env=os.environ | {"HOME": str(once_failed)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert (done.returncode, done.stderr) == (status, said)


@pytest.fixture(scope="module")
def once_failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the ledger of job 1."""
    home = tmp_path_factory.mktemp("home")
    ftrun("sh", "-c", "exit 3", home=home, FTRUN_MAX_RESTARTS="0")
    return home


def test_a_job_nobody_knows_is_one_sentence(tmp_path: Path) -> None:
    done = ftslurm("status", "4711", home=tmp_path)
    assert done.returncode == 66 and "4711" in done.stderr and len(done.stderr.splitlines()) == 1


def test_logs_of_a_job_whose_ranks_have_files(tmp_path: Path) -> None:
    """By a new step (the local requeue), which an --open-mode of the user's would let begin the files anew."""
    both = " && ".join(f'grep -qs "try $FTSLURM_ATTEMPT" {tmp_path}/out.{rank}' for rank in (0, 1))  # or one is stopped too early
    said = f"echo rank $SLURM_PROCID try $FTSLURM_ATTEMPT; until {both}; do sleep 0.02; done; [ $FTSLURM_ATTEMPT = 2 ]"
    argv = ("-n2", "-o", str(tmp_path / "out.%t"), "--open-mode=truncate", "sh", "-c", said)
    assert ftrun(*argv, home=tmp_path).returncode == 0
    whole = ftslurm("logs", "1", "--rank", "1", home=tmp_path).stdout.splitlines()
    assert whole == ["rank 1 try 1", "rank 1 try 2"]
    assert ftslurm("logs", "1", "--rank", "1", "-f", home=tmp_path).stdout.splitlines() == whole
    refused = ftslurm("logs", "1", "--attempt", "7", home=tmp_path)
    assert refused.returncode == 64 and "attempts of this job: 1 to 2" in refused.stderr


def test_ranks_that_ignore_the_end_of_ftrun_are_killed_after_the_grace(tmp_path: Path) -> None:
    """Where there is no Slurm, which would do it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "FTRUN_", "FTSLURM_"))}
    program = f"trap '' TERM; touch {tmp_path}/$SLURM_PROCID; while :; do sleep 0.1; done"
    ftrun = subprocess.Popen(
        [sys.executable, "-m", "ftslurm", "--ft-launcher", "local", "--ft-grace=1s", "-n2", "sh", "-c", program],
        env={**clean, "HOME": str(tmp_path)}, cwd=Path(__file__).parent.parent.parent, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + TIMEOUT_S
        while not (tmp_path / "0").exists() or not (tmp_path / "1").exists():
            assert time.monotonic() < end and ftrun.poll() is None
            time.sleep(0.05)
        ftrun.terminate()
        assert ftrun.wait(15) == 137
    finally:
        ftrun.kill()
        ftrun.wait(10)
