"""`ft_launcher` as its users know it: what its own end-to-end tests ask for, and its command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftslurm.cli.ft_launcher.command import settings_of
from ftslurm.cli.ft_launcher.options import read_options
from ftslurm.errors import UsageError
from tests.machine import slowness

RANKS = Path(__file__).with_name("ft_ranks.py")
ROOT = Path(__file__).parent.parent.parent
TIMEOUTS = ("--ft-initial-rank-heartbeat-timeout=3", "--ft_param_rank_heartbeat_timeout", "3")
TIME_S = 180


class Ended:
    def __init__(self, done: subprocess.CompletedProcess[str], took_s: float) -> None:
        self.status, self.out, self.err, self.took_s = done.returncode, done.stdout, done.stderr, took_s
        self.said = {line for line in self.out.splitlines() if not line.startswith("ftrun: ")}


class Launcher:
    """Runs `ft_launcher` as a user does, outside any allocation. `acts`: see ft_ranks.py."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "FTRUN_", "FTSLURM_", "PET_"))
        }
        self.env = {**clean, "HOME": str(folder), "PYTHON_EXEC": sys.executable}

    def __call__(self, *options: str, acts: str, **env: str) -> Ended:
        meeting = self._folder / "met"
        meeting.mkdir()
        return self.program(*options, str(RANKS), str(meeting), *acts.split(), **env)

    def program(self, *argv: str, **env: str) -> Ended:
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "ftslurm.cli.ft_launcher", *argv], env={**self.env, "PYTHONPATH": str(ROOT), **env}, cwd=self._folder,
            capture_output=True, text=True, timeout=TIME_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Ended(done, time.monotonic() - begun)


@pytest.fixture
def launch(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path)


# --- its six scenarios


@pytest.mark.timeout(2 * TIME_S)
def test_a_rank_that_never_beats_ends_all(launch: Launcher) -> None:
    ended = launch("--nproc-per-node=4", *TIMEOUTS, acts="hang")
    assert (ended.status, ended.said) == (1, {"start 0 of 4", "hangs"}), ended.err


def test_a_rank_that_fails_ends_all(launch: Launcher) -> None:
    ended = launch("--nproc-per-node=4", "--monitor-interval=1", *TIMEOUTS, acts="fail")
    assert (ended.status, ended.said) == (1, {"start 0 of 4", "fails"}), ended.err


def test_ranks_that_end_well_are_no_error(launch: Launcher) -> None:
    ended = launch("--nproc-per-node=4", *TIMEOUTS, acts="finish")
    assert (ended.status, ended.said) == (0, {"start 0 of 4", "ends well"}), ended.err


def test_ranks_that_obey_a_sigterm_to_the_launcher_are_no_error(launch: Launcher) -> None:
    ended = launch("--nproc-per-node=4", *TIMEOUTS, acts="obey")
    assert ended.status == 0 and ended.out.count("rank obeys") == 4, ended.err


def test_ranks_that_ignore_it_are_killed_after_the_term_timeout(launch: Launcher) -> None:
    ended = launch("--nproc-per-node=4", "--term-timeout=2", *TIMEOUTS, acts="ignore")
    assert ended.status == 1 and ended.out.count("rank ignores") == 4 and ended.took_s < 30 * slowness(), ended.err


def test_a_forked_child_of_a_rank_hears_it_as_well(launch: Launcher, tmp_path: Path) -> None:
    """torchrun signals the process group."""
    program = tmp_path / "forks.py"
    program.write_text(FORKS)
    ended = launch.program("--nproc-per-node=1", str(program))
    assert sorted(ended.said) == ["child ends", "rank ends"], ended.err


FORKS = """
import os, signal, time
who = "rank"
def leave(*_):
    print(who, "ends", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
if not os.fork():
    who = "child"
    time.sleep(1)
    launcher = os.getppid()
    for _ in range(2):  # the rank's shim, and ft_launcher above it
        launcher = int(open(f"/proc/{launcher}/stat").read().rpartition(")")[2].split()[1])
    os.kill(launcher, signal.SIGTERM)
time.sleep(60)
"""


def test_without_a_restart_that_is_the_reason(launch: Launcher) -> None:
    ended = launch("--nproc-per-node=2", "--max-restarts=0", acts="fail")
    assert ended.status == 1 and "no restart is allowed" in ended.err and "unconditional" not in ended.err, ended.err


@pytest.mark.timeout(2 * TIME_S)
def test_a_hang_and_a_failure_share_the_restarts(launch: Launcher) -> None:
    ended = launch("--nproc-per-node=4", "--max-restarts=2", *TIMEOUTS, acts="hang fail finish")
    said = {"start 0 of 4", "hangs", "start 1 of 4", "fails", "start 2 of 4", "ends well"}
    assert (ended.status, ended.said) == (0, said), ended.err


def test_one_restart_less_and_the_job_fails(launch: Launcher) -> None:
    ended = launch("--nproc-per-node=2", "--max-restarts=1", acts="fail")
    assert ended.status == 1 and "start 1 of 2" in ended.said and "1 restart" in ended.err


def test_a_program_that_has_let_go_of_its_client_may_take_its_time(launch: Launcher) -> None:
    ended = launch(
        "--nproc-per-node=2", "--ft-initial-rank-heartbeat-timeout=1", "--ft-rank-heartbeat-timeout=1", acts="slow-end"
    )
    assert ended.status == 0 and ended.took_s > 4, ended.err


def test_last_words_are_heard_before_the_decision(launch: Launcher) -> None:
    """A rank asks for the end of the job and exits at once."""
    ended = launch("--nproc-per-node=2", "--max-restarts=3", acts="told")
    assert ended.status == 1 and "start 1 of 2" not in ended.said
    assert "it diverged" in ended.err and "max_job_restarts" not in ended.err


# --- its command line

SPELLINGS = (
    ("--nproc-per-node=2 --max-restarts=3", "nproc_per_node", "2"), ("--nproc_per_node 2", "nproc_per_node", "2"), ("--max_restarts=3", "max_restarts", 3),
    ("--nnodes=2:3", "spares", 1), ("--term_timeout=7", "term_timeout", 7.0), ("--workers-stop-timeout=7", "workers_stop_timeout", 7.0),
    ("-m", "module", True), ("--no_python", "with_python", False), ("--run-path --no-python", "with_python", True),
    ("--ft-restart_policy=min-healthy", "policy", "min-healthy"), ("--restart-policy=any-failed", "policy", "any-failed"),
    ("--rdzv_id=7", "rdzv_id", "7"), ("-r 3 --log_dir=/x", "redirects", "3"), ("-t 0:3,1:2", "tee", "0:3,1:2"),
    ("--local_ranks_filter=0,1", "local_ranks_filter", "0,1"), ("--role=trainer", "role", "trainer"),
    ("--fault_tol_cfg_path=a.yaml", "config", "a.yaml"), ("--ft-cfg_path a.yaml", "config", "a.yaml"),
    ("--ft-ignore-missing-cfg --ft-cfg-path=a.yaml", "config", "a.yaml"),
    ("--ft-param-rank_heartbeat_timeout=5", "given", {"rank_heartbeat_timeout": "5"}),
    ("--ft-rank_heartbeat_timeout none", "given", {"rank_heartbeat_timeout": "none"}),
    ("--ft_enable_dist_storage_healthcheck true", "given", {"enable_dist_storage_healthcheck": "true"}),
    ("--ft-storage-health-check-path=/a", "given", {"storage_healthcheck_path": "/a"}),
    ("--ft-segment=4", "given", {"segment": "4"}), ("--ft-no-restart-exit-code=9", "ft_no_restart_exit_code", 9), ("--rdzv_id=7", "ft_no_restart_exit_code", 93),
)  # fmt: skip


@pytest.mark.parametrize(("words", "name", "value"), SPELLINGS)
def test_every_spelling_is_understood(words: str, name: str, value: object) -> None:
    found = read_options([*words.split(), "train.py", "--max-restarts=9", "x"], {})
    assert getattr(found, name) == value and found.command == ("train.py", "--max-restarts=9", "x") and not found.unused


ALL = (
    "--rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-id=x --rdzv-conf=a=b --local-addr=h --standalone --node-rank=0 --master-addr=h"
    " --master-port=1 --monitor-interval=1 --start-method=fork --redirects=0 --tee=3 --local-ranks-filter=0 --logs-specs=x"
    " --ft-rdzv-impl=barrier --ft-per-cycle-applog-prefix=/x --ft-nvrx-logfile=/x --ft-enable-log-server=true --ft-log-server-port=1"
    " --ft-log-aggregator-count=1 --ft-log-leaf-max-queue-chunks=1 --ft-log-server-log-prefix=x"
    " --ft-log-server-graceful-shutdown-timeout=1 --ft-node-health-check-endpoint=x --ft-no-restart-exit-code=93"
    " --ft-attribution-endpoint=localhost --ft-attribution-stop-action=log --ft-attribution-startup-timeout=1"
    " --ft-attribution-llm-api-key-file=x --ft-attribution-llm-base-url=x --ft-attribution-llm-model=x --ft-attribution-log-level=x"
    " --ft-attribution-export-url=x --ft-attribution-analysis-backend=lib --ft-cycle-info-dir=/x --ft-segment-health-check-dir=/x"
    " --ft-numa-bind-strict=true --ft-check-remaining-processes=true --ft-max-no-progress-cycles=3 --ft-skip-section-response=false"
)  # fmt: skip


def test_what_has_no_effect_is_named_with_its_reason() -> None:
    found = read_options([*ALL.split(), "train.py"], {})
    assert len(found.unused) == 24 and all(found.unused.values())
    theirs = {"PET_MASTER_PORT": "1", "PET_NPROC_PER_NODE": "3", "NVRX_DISABLE_RANK_MONITORS": "1"}
    assert read_options(["train.py"], theirs).unused.keys() == {"--master-port", "NVRX_DISABLE_RANK_MONITORS"}
    assert read_options(["train.py"], {"PET_NPROC_PER_NODE": "3"}).nproc_per_node == "3"


@pytest.mark.parametrize("words", [
    "", "--nproc-per-node", "--nnodes=0 x", "--nnodes=3:2 x", "--max-restarts=-1 x", "--max-restarts=x x", "--nproc=2 x", "-m --no-python x",
    "--rdzv-backend=etcd x", "--redirects=7 x", "--tee=0:4 x", "--local-ranks-filter=a x", "--ft-per-cycle-applog-prefix=x x", "--term-timeout=inf x", "--ft-nothing x", "--ft-no-restart-exit-code=256 x",
])  # fmt: skip
def test_a_wrong_command_line_is_refused(words: str) -> None:
    with pytest.raises(UsageError):
        read_options(words.split(), {})


def test_what_is_asked_for_becomes_settings() -> None:
    words = "--nnodes=2:3 --max-restarts=5 --term-timeout=9 --workers-stop-timeout=4 --ft-rank-heartbeat-timeout=3 --ft-set hang.c4d=true x"
    found = {name: value for name, (value, _) in settings_of(read_options(words.split(), {}), local=True).items()}
    assert found == {
        "max_job_restarts": 5, "mode": "any-failed", "rendezvous": "torch", "stop.grace": "4.0s", "stop.after_signal": "9.0s",
        "stop.signal_delay": "0.3s", "launcher": "local", "nodes.spares": 1, "no_restart_status": 93, "fault_tolerance": {"rank_heartbeat_timeout": 3.0}, "sdk.provide": "nvrx",
        "hang.c4d": "true",
    }  # fmt: skip


@pytest.mark.parametrize(("words", "status", "said"), [
    (["--nonsense", "x.py"], 2, "--nonsense"), (["--nnodes=2", "x.py"], 1, "outside a Slurm allocation"),
    (["--ft-cfg-path=/not/there.yaml", "x.py"], 1, "/not/there.yaml"), (["--nproc-per-node=gpu", "x.py"], 1, "no GPU"),
    (["--no-python", "/not/there"], 1, "No such file"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_its_status(launch: Launcher, words: list[str], status: int, said: str) -> None:
    ended = launch.program(*words, CUDA_VISIBLE_DEVICES="-1")
    assert (ended.status, ended.out) == (status, "") and said in ended.err, ended.err


def test_ranks_have_torchrun_s_variables(launch: Launcher) -> None:
    names = (
        "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE OMP_NUM_THREADS"
        " TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE"
        " TORCH_NCCL_ASYNC_ERROR_HANDLING"
    )
    sockets = "test $FT_RANK_MONITOR_IPC_SOCKET && test $FT_LAUNCHER_IPC_SOCKET && test $MASTER_ADDR && test $MASTER_PORT"
    tell = f"for name in {names}; do eval echo $name=\\$$name; done; {sockets}"
    options = ("--nproc-per-node=2", "--max-restarts=4", "--rdzv-id=job7", "--role=trainer", "--no-python")
    ended = launch.program(*options, "sh", "-c", f"test $RANK = 0 || exit 0; {tell}")
    assert ended.status == 0, ended.err
    assert dict(line.split("=") for line in ended.out.split()) == {
        "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "ROLE_RANK": "0", "ROLE_NAME": "trainer", "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "4", "TORCHELASTIC_RUN_ID": "job7",
        "TORCHELASTIC_USE_AGENT_STORE": "False", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }  # fmt: skip


def test_more_restarts_than_a_job_may_have_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = settings_of(read_options(["--max-restarts=1001", "x"], {}), local=True)
    assert found["max_job_restarts"] == (1000, "--max-restarts") and "1000 is the most" in capsys.readouterr().err


# --- two packages, one name


def test_it_says_whose_it_is(launch: Launcher) -> None:
    ended = launch.program("--version")
    assert ended.status == 0 and ended.out.startswith("ft_launcher of ftslurm ") and "NVIDIA's own" in ended.out
    assert launch.program("--version", "x.py").status == 2


def test_a_site_that_had_chosen_theirs_is_told(launch: Launcher) -> None:
    ended = launch.program("x.py", FTSLURM_FT_LAUNCHER="nvidia")
    assert ended.status == 2 and "python -m nvidia_resiliency_ext.fault_tolerance.launcher" in ended.err


# --- no restart can help

COUNTS = 'n=$(cat "$0"); test $n -ge 4 || n=$((n + 1)); test "$n" -gt 6 || echo $n > "$0"; exit 1'


@pytest.mark.parametrize(("options", "status", "starts", "why"), [
    ("--max-restarts=9", 93, 4, "2 attempts in a row without progress"),
    ("--max-restarts=9 --ft-no-restart-exit-code=8 --ft-min-progress-iterations=2", 8, 2, "2 attempts in a row"),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (
        ("--max-restarts=2", 1, 3, "the job has used its 2 restarts"), ("--max-restarts=4 --ft-max-no-progress-cycles=-1", 1, 5, ""),
    )),
])  # fmt: skip
def test_a_training_that_gets_no_further_is_given_up(
    launch: Launcher, tmp_path: Path, options: str, status: int, starts: int, why: str
) -> None:
    """The program writes 3 and 4 into the file, and then no more: two attempts get on, and the next two do not."""
    file = tmp_path / "latest_checkpointed_iteration.txt"
    file.write_text("2\n")
    program = ("sh", "-c", "echo start; " + COUNTS, str(file))
    cycles = () if "cycles" in options else ("--ft-max-no-progress-cycles=2",)
    ended = launch.program(*options.split(), *cycles, f"--ft-checkpoint-iteration-file={file}", "--no-python", *program)
    assert (ended.status, ended.out.count("start")) == (status, starts) and why in ended.err, ended.err


def test_a_file_that_cannot_be_read_tells_nothing(launch: Launcher, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("missing", "fifo"):
        ended = launch.program(
            "--max-restarts=2",
            "--ft-max-no-progress-cycles=1",
            f"--ft-checkpoint-iteration-file={tmp_path}/{name}",
            "--no-python",
            "false",
        )
        assert ended.status == 1 and "the job has used its 2 restarts" in ended.err, ended.err


def test_a_program_that_ends_with_that_status_has_failed_as_any_other(launch: Launcher) -> None:
    assert launch.program("--no-python", "sh", "-c", "exit 93").status == 1


def test_a_hopeless_error_is_given_up_where_attribution_may_stop_the_job(launch: Launcher) -> None:
    """Their service reads the log with a language model; here the verdict is ftslurm's own."""
    stops = ("--ft-attribution-endpoint=localhost", "--ft-attribution-stop-action=no-restart")
    program = ("--nproc-per-node=2", "--max-restarts=2", "--no-python", sys.executable, "-c", "import nowhere_at_all")
    ended = launch.program(*stops, *program)
    assert ended.status == 93 and "cannot help" in ended.err, ended.err
    ended = launch.program(stops[0], *program)
    assert ended.status == 1 and "the job has used its 2 restarts" in ended.err, ended.err


# --- where output goes

PRINTS = 'echo out $RANK of $TORCHELASTIC_RESTART_COUNT; echo err $RANK >&2; test "$RANK $TORCHELASTIC_RESTART_COUNT" != "1 0"'


def files_in(folder: Path) -> dict[str, str]:
    """Name, without the folder of the run, -> contents."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(next(folder.iterdir()))): path.read_text() for path in found}


def without_ours(lines: str) -> list[str]:
    return sorted(line for line in lines.splitlines() if not line.startswith(("ftrun: ", "ft_launcher: ", "==> ")))


def test_output_goes_into_files_by_attempt_and_rank(launch: Launcher, tmp_path: Path) -> None:
    """And `ftslurm logs` finds it."""
    ended = launch.program(
        "--nproc-per-node=2",
        "-r",
        "3",
        "--max-restarts=1",
        "--log-dir",
        str(tmp_path / "logs"),
        "--no-python",
        "sh",
        "-c",
        PRINTS,
    )
    assert ended.status == 0, ended.err
    # Rank 0 is stopped at once when rank 1 fails: what it wrote in the first attempt may be anything up to all.
    found = {name: text for name, text in files_in(tmp_path / "logs").items() if not name.startswith("attempt_0/0")}
    assert found == {
        "attempt_0/1/stdout.log": "out 1 of 0\n", "attempt_0/1/stderr.log": "err 1\n", "attempt_1/0/stdout.log": "out 0 of 1\n",
        "attempt_1/0/stderr.log": "err 0\n", "attempt_1/1/stdout.log": "out 1 of 1\n", "attempt_1/1/stderr.log": "err 1\n",
    }  # fmt: skip
    assert without_ours(ended.out + ended.err) == [] and "attempt_*/1/stderr.log" in ended.err
    told = subprocess.run(
        [sys.executable, "-m", "ftslurm.cli.ftslurm", "logs", "1", "--rank", "1"], env={**launch.env, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=TIME_S,
    )  # fmt: skip
    assert told.stdout.split("\n") == ["out 1 of 0", "err 1", "out 1 of 1", "err 1", ""], told.stderr


ALL_FILES = {"0/stdout.log", "0/stderr.log", "1/stdout.log", "1/stderr.log"}


@pytest.mark.parametrize(("options", "files", "out", "err"), [
    ("-r 0:3,1:2", ALL_FILES - {"1/stdout.log"}, ["out 1 of 1"], []),
    ("--tee 3 --local-ranks-filter=1", ALL_FILES, ["[default1]:out 1 of 1"], ["[default1]:err 1"]),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (
        ("--tee 3", ALL_FILES, ["[default0]:out 0 of 1", "[default1]:out 1 of 1"], ["[default0]:err 0", "[default1]:err 1"]),
        ("-r 3 --tee 1:1", ALL_FILES, ["[default1]:out 1 of 1"], []), ("--local-ranks-filter=0", set(), ["out 0 of 1"], ["err 0"]),
    )),
])  # fmt: skip
def test_streams_are_chosen_by_local_rank_as_torchrun_does(
    launch: Launcher, tmp_path: Path, options: str, files: set[str], out: list[str], err: list[str]
) -> None:
    logs = ("--log-dir", str(tmp_path / "logs")) if files else ()
    # TORCHELASTIC_RESTART_COUNT is 1 in PRINTS where nothing fails.
    prints = PRINTS.replace("$TORCHELASTIC_RESTART_COUNT", "1")
    ended = launch.program("--nproc-per-node=2", *options.split(), *logs, "--no-python", "sh", "-c", prints)
    assert ended.status == 0, ended.err
    assert (without_ours(ended.out), without_ours(ended.err)) == (out, err)
    assert {name.removeprefix("attempt_0/") for name in (files_in(tmp_path / "logs") if files else {})} == files


def test_lines_that_are_printed_begin_as_the_template_says(launch: Launcher, tmp_path: Path) -> None:
    ended = launch.program(
        "--nproc-per-node=1", "--tee=1", "--role=trainer", "--log-dir", str(tmp_path / "logs"), "--no-python", "sh", "-c", "printf 'a\nb'",
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="<${role_name} ${rank} ${local_rank}> ",
    )  # fmt: skip
    assert (ended.status, ended.out) == (0, "<trainer 0 0> a\n<trainer 0 0> b\n"), ended.err
    assert files_in(tmp_path / "logs") == {"attempt_0/0/stdout.log": "a\nb"}


def test_each_cycle_has_one_file_with_the_lines_of_all_ranks(launch: Launcher, tmp_path: Path) -> None:
    ended = launch.program(
        "--nproc-per-node=2",
        "--max-restarts=1",
        f"--ft-per-cycle-applog-prefix={tmp_path}/job.log",
        "--no-python",
        "sh",
        "-c",
        PRINTS,
    )
    assert ended.status == 0 and without_ours(ended.out + ended.err) == [], ended.err
    assert {"1: out 1 of 0", "1: err 1"} <= set((tmp_path / "job_cycle0.log").read_text().splitlines())
    assert sorted((tmp_path / "job_cycle1.log").read_text().splitlines()) == [
        "0: err 0",
        "0: out 0 of 1",
        "1: err 1",
        "1: out 1 of 1",
    ]


def test_each_cycle_has_its_record(launch: Launcher, tmp_path: Path) -> None:
    cycles = tmp_path / "cycles" / "nvrx"
    ended = launch.program(
        "--nproc-per-node=2", "--max-restarts=1", f"--ft-cycle-info-dir={cycles}", f"--ft-per-cycle-applog-prefix={tmp_path}/job.log",
        "--no-python", "sh", "-c", 'echo "$NVRX_CURRENT_CYCLE_INFO" >link; ' + PRINTS,
    )  # fmt: skip
    assert ended.status == 0 and "no effect" not in ended.err, ended.err
    assert (tmp_path / "link").read_text() == f"{cycles}/cycle_info.1.current\n"
    assert sorted(path.name for path in cycles.iterdir()) == ["cycle_info.1.0.0", "cycle_info.1.0.1", "cycle_info.1.current"]
    first, last = (json.loads((cycles / f"cycle_info.1.{name}").read_text()) for name in ("0.0", "current"))
    assert first["cycle_start_time"] < first["cycle_end_time"] <= last["cycle_start_time"] < last["cycle_end_time"]
    assert {name: value for name, value in last.items() if not name.endswith("time")} == {
        "job_id": "1", "attempt_index": 0, "cycle_number": 1, "cycle_log_file": f"{tmp_path}/job_cycle1.log", "active_nodes": "local1",
        "standby_nodes": "", "active_ranks": "0-1", "generation": 0,
    }  # fmt: skip
    (tmp_path / "file").write_text("")
    ended = launch.program(f"--ft-cycle-info-dir={tmp_path}/file", "--no-python", "true")
    assert ended.status == 0 and "cycle_info_dir" in ended.err


def test_files_that_cannot_be_written_are_a_sentence(launch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = launch.program(f"--log-dir={tmp_path}/file/logs", "-r3", "--no-python", "true")
    assert ended.status == 1 and "--log-dir" in ended.err and "Not a directory" in ended.err
    ended = launch.program(f"--ft-per-cycle-applog-prefix={tmp_path}/file/logs/job.log", "--no-python", "true")
    assert ended.status == 1 and f"its output cannot be written to {tmp_path}/file/logs: Not a directory" in ended.err, ended.err


def test_a_program_finds_where_to_write_how_it_failed(launch: Launcher, tmp_path: Path) -> None:
    ended = launch.program(f"--log-dir={tmp_path}/logs", "--no-python", "sh", "-c", "echo {} > $TORCHELASTIC_ERROR_FILE")
    assert ended.status == 0 and files_in(tmp_path / "logs") == {"attempt_0/0/error.json": "{}\n"}, ended.err
