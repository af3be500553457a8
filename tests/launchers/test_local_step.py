"""The srun for one machine: its judgement as tables, and its work with plain commands where the shim would stand.

What the tables hold is what srun 22.05 answered; tests/live/test_local_like_srun.py asks it again.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread

import pytest

from ftslurm.errors import UsageError
from ftslurm.launchers.local_layout import (
    LocalLayout,
    Simulated,
    distribute,
    exported_values,
    in_slot_order,
    lay_out,
    nodes_asked,
    options_from,
    step_environ,
    task_environ,
)
from ftslurm.launchers.local_stdio import Stdio, carry
from ftslurm.launchers.rank_logs import StreamKind, StreamTarget, read_target
from ftslurm.model.exits import ExitStatus, of_step
from ftslurm.model.text import expand_pattern

ROOT = Path(__file__).resolve().parents[2]
NODES = ("n1", "n2", "n3", "n4")
TIMEOUT_S = 100.0


def words(line: str) -> list[str]:
    return shlex.split(line)


# --- where each task runs

# options, what runs where on n1 to n4
LAYOUTS = [
    ("", "n1:0 n2:1 n3:2 n4:3"),
    ("-N2", "n1:0 n2:1"),
    ("-n2", "n1:0 n2:1"),
    ("-n6", "n1:0,1 n2:2,3 n3:4 n4:5"),
    ("-n9 -N2", "n1:0,1,2,3,4 n2:5,6,7,8"),
    ("--ntasks-per-node=2", "n1:0 n2:1"),  # one node's worth of tasks, and no word of the nodes
    ("-N2 --ntasks-per-node=2", "n1:0,1 n2:2,3"),
    ("-n4 --ntasks-per-node=2", "n1:0 n2:1 n3:2 n4:3"),
    ("-w n[2-3] --ntasks-per-node=2", "n2:0,1 n3:2,3"),
    ("-w n2,n1", "n1:0 n2:1"),
    ("-w n3 -n3", "n3:0,1,2"),
    ("-w n3,n2 -N2 -n4", "n2:0,1 n3:2,3"),
    ("-w n2,n4 -N3", "n1:0 n2:1 n4:2"),
    ("-n6 -m cyclic", "n1:0,4 n2:1,5 n3:2 n4:3"),
    ("-n5 -N2 -m cyclic:block", "n1:0,2,4 n2:1,3"),
    ("-n5 -N2 -m *", "n1:0,1,2 n2:3,4"),
    ("-n3 -w n4,n3,n4 -m arbitrary", "n3:1 n4:0,2"),
    ("-w n4,n3,n4 -m arbitrary", "n3:1 n4:0,2"),
    ("-N2 --mem=1G -p gpu --gres=gpu:8 -t 10 -K -W5 --exclusive -c3", "n1:0 n2:1"),
]  # fmt: skip


def told(layout: LocalLayout) -> str:
    return " ".join(f"{node}:{','.join(map(str, ranks))}" for node, ranks in zip(layout.nodes, layout.ranks, strict=True))


@pytest.mark.parametrize(("options", "placed"), LAYOUTS)
def test_tasks_lie_where_srun_lays_them(options: str, placed: str) -> None:
    layout = lay_out(words(options), NODES)
    assert (told(layout), layout.notes) == (placed, ())


# options, what runs where, what srun says to it
CORRECTED = [
    ("-N2 -n1", "n1:0", "Warning: can't run 1 processes on 2 nodes, setting nnodes to 1"),
    ("-N7 -n2", "n1:0 n2:1", "Warning: can't run 2 processes on 7 nodes, setting nnodes to 2"),
    ("-w n2,n4 -n1", "n2:0", "Warning: can't run 1 processes on 2 nodes, setting nnodes to 1"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "placed", "note"), CORRECTED)
def test_what_does_not_fit_is_made_to_with_srun_s_remark(options: str, placed: str, note: str) -> None:
    layout = lay_out(words(options), NODES)
    assert (told(layout), layout.notes) == (placed, (note,))


@pytest.mark.parametrize(("options", "why"), [
    ("-N7", "7 nodes requested, only 4 available"),
    ("-x n1", "--exclude is not supported without Slurm"),
    ("-w n9", "--nodelist names n9, but the step can use n[1-4] only"),
    ("-r1 -N2", "--relative is not supported without Slurm"),
    ("-n2 -w n4,n3,n4 -m arbitrary", "--distribution=arbitrary: 2 tasks, but --nodelist names 3 places"),
    ("-n2 -m arbitrary", "--distribution=arbitrary: 2 tasks, but --nodelist names 0 places"),
    ("-n0", "--ntasks: `0` is not a number from 1 to 100000"),
    ("-n abc", "--ntasks: `abc` is not a number from 1 to 100000"),
    ("-N3-2", "--nodes=3-2: not a number of nodes (1 to 65536)"),
    ("-N abc", "--nodes=abc: not a number of nodes (1 to 65536)"),
    ("-N0", "--nodes=0: not a number of nodes (1 to 65536)"),
    ("-m plane=2", "--distribution=plane=2 is not supported without Slurm"),
])  # fmt: skip
def test_what_makes_no_layout_is_refused(options: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        lay_out(words(options), NODES)
    assert refused.value.message == why


@pytest.mark.parametrize(("options", "nodes"), [("", None), ("-N2", 2), ("-N2-3", 2), ("--nodes=2-2", 2)])
def test_of_a_range_of_nodes_the_lower_bound_counts(options: str, nodes: int | None) -> None:
    assert nodes_asked(words(options)) == nodes


@pytest.mark.parametrize("distribution", ["block", "cyclic"])
@pytest.mark.parametrize(("tasks", "nodes"), [(1, 1), (4, 4), (5, 4), (17, 3), (32, 5)])
def test_every_rank_runs_once_and_every_node_has_one(distribution: str, tasks: int, nodes: int) -> None:
    ranks = distribute(tasks, nodes, distribution)
    assert sorted(rank for each in ranks for rank in each) == list(range(tasks))
    assert all(each == tuple(sorted(each)) and each for each in ranks)


def test_the_order_of_the_allocation_is_the_order_of_the_slots() -> None:
    layout = lay_out(words("-w local1,local3"), ("local3", "local2", "local1"))
    assert layout.nodes == ("local3", "local1")
    assert in_slot_order(layout.nodes) == "local3,local1"


# --- what each task is told


def test_a_task_has_the_variables_it_has_under_slurm() -> None:
    options = words("-N3 -n5 -c2 -J llm")
    layout = lay_out(options, NODES)
    env = step_environ(Simulated(NODES, job=3, step=14), layout, options) | task_environ(layout, layout.places()[3])
    assert env == {
        "SLURM_JOB_ID": "3", "SLURM_JOBID": "3", "SLURM_STEP_ID": "14", "SLURM_STEPID": "14", "SLURM_JOB_NAME": "llm",
        "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURMD_NODENAME": "n2", "SLURM_GTIDS": "2,3",
        "SLURM_NTASKS": "5", "SLURM_NPROCS": "5", "SLURM_STEP_NUM_TASKS": "5", "SLURM_CPUS_PER_TASK": "2",
        "SLURM_NNODES": "3", "SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_NUM_NODES": "3",
        "SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        "SLURM_NODELIST": "n[1-4]", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_STEP_NODELIST": "n[1-3]",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_SUBMIT_DIR": str(Path.cwd()), "FTSLURM_LOCAL": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "per_node"), [("-N2 --ntasks-per-node=2", "2"), ("-N2 -n6 --ntasks-per-node=2", None), ("-N2", None)]
)
def test_tasks_per_node_are_told_where_they_hold(options: str, per_node: str | None) -> None:
    layout = lay_out(words(options), NODES)
    assert step_environ(Simulated(NODES, 3, 0), layout, words(options)).get("SLURM_NTASKS_PER_NODE") == per_node


ENV = {"AA": "env", "BB": "b", "SLURM_XX": "x", "FTSLURM_CHANNEL": "c", "FTSLURM_LOCAL_JOB": "3"}
ALWAYS = {"SLURM_XX": "x", "FTSLURM_CHANNEL": "c"}
EXPORTS = [
    (None, {"AA": "env", "BB": "b"}),
    ("ALL", {"AA": "env", "BB": "b"}),
    ("NONE", {}),
    ("none", {}),
    ("AA", {"AA": "env"}),
    ("AA,CC=3,DD", {"AA": "env", "CC": "3"}),
    ("AA=opt", {"AA": "opt"}),
    ("ALL,AA=opt,CC=3", {"AA": "env", "BB": "b", "CC": "3"}),  # srun lets the environment win
    ("CC=3,NONE,AA", {"CC": "3"}),
    ("ALL,NONE", {"AA": "env", "BB": "b"}),
    ("'CC=3,4',AA", {"CC": "3,4", "AA": "env"}),
    ("CC='3,4'", {"CC": "'3,4'"}),
    ("AA=,,BB", {"AA": "", "BB": "b"}),
    ("NIL", {}),
]


@pytest.mark.parametrize(("export", "passed"), EXPORTS)
def test_export_lets_through_what_srun_does(export: str | None, passed: dict[str, str]) -> None:
    assert exported_values(ENV, export) == {**ALWAYS, **passed}


def test_the_environment_gives_options_too_and_the_command_line_wins() -> None:
    env = {"SLURM_NTASKS": "3", "SLURM_LABELIO": "1", "SRUN_EXPORT_ENV": "B", "SLURM_EXPORT_ENV": "A"}
    assert options_from(env, ("-n2",)) == ("--export=A", "--export=B", "--label", "--ntasks=3", "-n2")


# --- where output goes

VALUES = {"t": "1", "n": "0", "N": "n2", "j": "3", "J": "3.14", "s": "14", "u": "me", "x": "llm", "A": "5", "a": "7"}
PATTERNS = [
    ("out.%t.%3t.%n.%2n.%N.%j.%J.%s.%u.%x.%%.%A.%a", "out.1.001.0.00.n2.3.3.14.14.me.llm.%.5.7"),
    ("%5j.%5J.%4s.%12t", "00003.00003.14.0014.0000000001"),
    ("%3N.%3u.%3x", "n2.me.llm"),
    ("%%t.%%%t.%t%n.%%3t", "%t.%1.10.%3t"),
    ("%q.%3q.100%", "%q.%3q.100%"),
]


@pytest.mark.parametrize(("pattern", "name"), PATTERNS)
def test_patterns_become_file_names(pattern: str, name: str) -> None:
    assert expand_pattern(pattern, VALUES) == name


TARGETS = [
    (None, StreamTarget(StreamKind.ALL)), ("all", StreamTarget(StreamKind.ALL)), ("-", StreamTarget(StreamKind.ALL)),
    ("none", StreamTarget(StreamKind.NONE)), ("NONE", StreamTarget(StreamKind.NONE)), ("nonesuch", StreamTarget(StreamKind.FILE, pattern="nonesuch")),
    ("0", StreamTarget(StreamKind.ONE, task=0)), ("3", StreamTarget(StreamKind.ONE, task=3)), ("4", StreamTarget(StreamKind.FILE, pattern="4")),
    ("log.%j", StreamTarget(StreamKind.FILE, pattern="log.%j")), ("log.%%t", StreamTarget(StreamKind.FILE, pattern="log.%%t")),
    ("log.%t", StreamTarget(StreamKind.EACH, pattern="log.%t")), ("%2n/log", StreamTarget(StreamKind.EACH, pattern="%2n/log")),
    ("log.\\%t", StreamTarget(StreamKind.FILE, pattern="log.%%t")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "target"), TARGETS)
def test_targets_are_read_as_srun_reads_them(text: str | None, target: StreamTarget) -> None:
    assert read_target(text, tasks=4) == target


def carried(*parts: bytes, prefix: bytes = b"0: ") -> bytes:
    """What comes out of a carrier that gets the parts."""
    (source, task), (ours, to) = os.pipe(), os.pipe()
    carrier = Thread(target=carry, args=(source, prefix, to, Lock()))
    carrier.start()
    for part in parts:
        os.write(task, part)
    os.close(task)
    with open(ours, "rb") as out:
        Thread(target=lambda: (carrier.join(), os.close(to))).start()
        return out.read()


def test_a_label_stands_before_every_line_however_it_arrives() -> None:
    assert carried(b"one\ntw", b"o", b"\n\nthr", b"ee", prefix=b" 3: ") == b" 3: one\n 3: two\n 3: \n 3: three\n"


def test_a_long_line_stays_whole_and_one_without_end_is_not_kept_for_ever() -> None:
    line = b"x" * 5000 + b"\n"
    assert carried(line) == b"0: " + line
    endless = b"y" * (1 << 16)
    assert carried(endless, b"z") == b"0: " + endless + b"\n0: z\n"


def test_a_reader_that_is_slow_is_waited_for_longer_than_one_who_writes_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    stdio = Stdio(
        ("--label", f"--output={tmp_path}/log", "--input=none"), lay_out(("-n1",), ("n1",)), tmp_path, lambda name, _: name
    )
    text = b"x" * 60_000 + b"\n"
    task = os.dup(stdio.of[0][1])
    stdio.start()
    os.write(task, text)
    waits = Thread(target=stdio.deliver, args=(0.1,))
    waits.start()
    os.write(task, text)  # more than the FIFO holds
    waits.join(0.6)
    assert waits.is_alive()
    while waits.is_alive():
        with suppress(BlockingIOError):
            os.read(reader, 1 << 16)
        waits.join(0.05)
    stdio.deliver(0.1)  # now nobody writes, and our end of the task's pipe is open
    os.close(task)
    os.close(reader)


# --- how tasks ended


@pytest.mark.parametrize(("statuses", "status"), [((0, 0), 0), ((0, 7, 3), 7), ((137, 200), 137), ((137, 143), 143), ((), 0)])
def test_the_worst_end_is_the_step_s(statuses: tuple[int, ...], status: int) -> None:
    exits = [ExitStatus(0, status - 128) if status in (137, 143) else ExitStatus(status) for status in statuses]
    assert of_step(exits).shell == status


# --- at work


def environ(nodes: str, more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SRUN", "FTSLURM"))}
    simulated = {"FTSLURM_LOCAL_NODES": nodes, "FTSLURM_LOCAL_JOB": "3", "FTSLURM_LOCAL_STEP": "14"}
    return {**kept, "PYTHONPATH": str(ROOT), **simulated, **more}


def command(options: str, script: str) -> list[str]:
    return [sys.executable, "-m", "ftslurm.launchers.local_step", *words(options), "--", "sh", "-c", script]


Local = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def local(tmp_path: Path) -> Local:
    """Runs a shell script once per task, in a folder of its own."""

    def run(
        options: str, script: str, stdin: str | None = None, nodes: str = "n1,n2", **env: str
    ) -> subprocess.CompletedProcess[str]:
        how = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(
            command(options, script), env=environ(nodes, env), cwd=tmp_path, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False, **how,
        )  # fmt: skip

    return run


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def test_a_task_sees_its_place(local: Local) -> None:
    done = local("-N2 -n3", "echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID $SLURM_NODEID $SLURM_GTIDS $FTSLURM_LOCAL")
    assert lines(done.stdout) == ["0 n1 0 0 0,1 1", "1 n1 1 0 0,1 1", "2 n2 0 1 2 1"]
    assert (done.returncode, done.stderr) == (0, "")


def test_the_simulation_s_own_variables_are_not_for_tasks(local: Local) -> None:
    done = local("-n1", "env", FTSLURM_CHANNEL="secret")
    assert "FTSLURM_CHANNEL=secret" in done.stdout
    assert "FTSLURM_LOCAL_" not in done.stdout


def test_export_none_leaves_slurm_s_and_ours(local: Local) -> None:
    done = local("-n1 --export=NONE", "echo [$HOME] [$FTSLURM_CHANNEL] [$SLURM_NTASKS]", FTSLURM_CHANNEL="c")
    assert done.stdout == "[] [c] [1]\n"


def test_labels_are_as_wide_as_the_widest_rank(local: Local) -> None:
    done = local("-l -n12", "echo out; echo err >&2")
    assert lines(done.stdout) == sorted(f"{rank:>2}: out" for rank in range(12))
    assert lines(done.stderr) == sorted(f"{rank:>2}: err" for rank in range(12))


def test_labelled_lines_stay_whole_under_load(local: Local) -> None:
    done = local("-l -n8", "i=0; while [ $i -lt 500 ]; do printf '%s' $SLURM_PROCID-; echo $i; i=$((i+1)); done")
    told = done.stdout.splitlines()
    assert sorted(told) == sorted(f"{rank}: {rank}-{i}" for rank in range(8) for i in range(500))
    assert [line for line in told if line.startswith("3:")] == [f"3: 3-{i}" for i in range(500)]


def test_unlabelled_output_is_not_copied(local: Local, tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        argv = command("-n2", "readlink /proc/self/fd/1")
        subprocess.run(argv, env=environ("n1", {}), stdout=log, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)
    assert lines((tmp_path / "log").read_text()) == [str(tmp_path / "log")] * 2


def test_a_single_task_has_our_stdin_itself(local: Local, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("data\n")
    with open(tmp_path / "in") as stdin:
        argv = command("-n1", "readlink /proc/self/fd/0; cat")
        done = subprocess.run(
            argv, env=environ("n1", {}), stdin=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    assert done.stdout == f"{tmp_path / 'in'}\ndata\n"


def files(folder: Path) -> dict[str, list[str]]:
    return {path.name: lines(path.read_text()) for path in folder.iterdir()}


BOTH = "echo o$SLURM_PROCID; echo e$SLURM_PROCID >&2"


def test_output_by_task_and_error_by_node(local: Local, tmp_path: Path) -> None:
    done = local("-N2 -n3 -o out.%j.%3t -e err.%N.%n", BOTH)
    assert files(tmp_path) == {
        "out.3.000": ["o0"], "out.3.001": ["o1"], "out.3.002": ["o2"], "err.n1.0": ["e0", "e1"], "err.n2.1": ["e2"],
    }  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")


def test_files_can_have_the_name_of_the_job(local: Local, tmp_path: Path) -> None:
    local("-n1 -J llm -o %x.%j", "echo x")
    local("-n1 -o %x.%j", "echo x", SLURM_JOB_NAME="batch")
    assert sorted(files(tmp_path)) == ["batch.3", "llm.3"]


def test_error_goes_with_output_unless_told_otherwise(local: Local, tmp_path: Path) -> None:
    assert local("-n2 -o log", BOTH).stderr == ""
    assert files(tmp_path) == {"log": ["e0", "e1", "o0", "o1"]}
    assert lines(local("-n2 -e log", BOTH).stdout) == ["o0", "o1"]
    assert files(tmp_path) == {"log": ["e0", "e1"]}


ONE_STREAM = [
    ("-o 1", ["e1", "o1"], []), ("-o none", [], []), ("-e none", ["o0", "o1", "o2"], []),
    ("-o 1 -e 0", ["o1"], ["e0"]), ("-l -o 1", ["1: e1", "1: o1"], []), ("-l -o none", [], []),
]  # fmt: skip


@pytest.mark.parametrize(("options", "out", "err"), ONE_STREAM)
def test_output_of_one_task_or_none(local: Local, options: str, out: list[str], err: list[str]) -> None:
    done = local(f"-n3 {options}", BOTH)
    assert (lines(done.stdout), lines(done.stderr)) == (out, err)


@pytest.mark.parametrize(("mode", "left"), [("append", ["new", "old"]), ("truncate", ["new"]), ("a", ["new", "old"])])
def test_files_are_appended_to_or_begun_anew(local: Local, tmp_path: Path, mode: str, left: list[str]) -> None:
    (tmp_path / "log").write_text("old\n")
    local(f"-n1 -o log --open-mode={mode}", "echo new")
    assert files(tmp_path) == {"log": left}


def test_a_file_that_cannot_be_opened_stops_the_step_before_it_starts(local: Local) -> None:
    done = local("-n2 -o no/such/folder", "echo started >&2")
    assert (done.returncode, "started" in done.stderr) == (71, False)
    assert done.stderr.startswith("ftrun: error: the stdout file ")


def test_tasks_run_in_the_folder_given_and_files_by_task_lie_there(local: Local, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    local("-n1 -D sub -o here -e there.%t", "pwd; pwd >&2")
    assert (tmp_path / "here").read_text() == (tmp_path / "sub" / "there.0").read_text() == f"{tmp_path / 'sub'}\n"


@pytest.mark.parametrize("folder", ["/no/such", "/etc/passwd"])
def test_a_folder_that_is_none_stops_the_step_before_it_starts(local: Local, folder: str) -> None:
    done = local(f"-n1 -D {folder}", "echo started >&2")
    said = f"ftrun: error: --chdir: {folder} is not a folder that you may enter (correct the path)\n"
    assert (done.returncode, done.stderr) == (64, said)


# --- stdin

READS = [
    ("", ["a", "a", "a", "b", "b", "b"]), ("-i all", ["a", "a", "a", "b", "b", "b"]), ("-i 1", ["a", "b"]), ("-i none", []),
    ("-i in", ["in", "in", "in"]), ("-i in%t", ["in1", "in2", "in0"]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "read"), READS)
def test_who_reads_what(local: Local, tmp_path: Path, options: str, read: list[str]) -> None:
    (tmp_path / "in").write_text("in\n")
    for rank in range(3):
        (tmp_path / f"in{rank}").write_text(f"in{rank}\n")
    assert lines(local(f"-n3 {options}", "cat", stdin="a\nb\n").stdout) == sorted(read)


def test_much_input_reaches_all_unharmed(local: Local, tmp_path: Path) -> None:
    text = "".join(f"{number}\n" for number in range(500_000))
    done = local("-n3 -o copy.%t", "cat", stdin=text)
    assert done.returncode == 0
    assert [(tmp_path / f"copy.{rank}").read_text() == text for rank in range(3)] == [True] * 3


@pytest.mark.parametrize("others", ["exec <&-; sleep 2", "sleep 1"])  # closes its stdin; ends without having read
def test_who_does_not_read_stops_the_others_only_until_it_is_gone(local: Local, others: str) -> None:
    done = local("-n3", f"if [ $SLURM_PROCID = 0 ]; then wc -c; else {others}; fi", stdin="x" * (8 << 20))
    assert done.stdout.strip() == str(8 << 20)


def test_the_step_ends_with_its_tasks_whatever_stdin_does() -> None:
    process = subprocess.Popen(command("-n2", "read line; echo $line"), env=environ("n1", {}), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdin and process.stdout
    process.stdin.write("one\n")
    process.stdin.flush()
    assert process.wait(TIMEOUT_S) == 0  # our end of the pipe is still open
    assert process.stdout.read() == "one\none\n"
    process.stdin.close()
    process.stdout.close()


def test_nothing_is_read_when_nobody_wants_it() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"kept\n")
    subprocess.run(command("-n2 -i none", "cat"), env=environ("n1", {}), stdin=reading, timeout=TIMEOUT_S, check=True)
    os.close(writing)
    assert os.read(reading, 100) == b"kept\n"
    os.close(reading)


@pytest.mark.parametrize(("options", "said"), [("-n1", ["/pipe", "typed"]), ("-n2", ["/pipe", "/pipe", "typed", "typed"])])
def test_what_is_typed_reaches_all_and_no_task_has_the_terminal(options: str, said: list[str]) -> None:
    master, slave = os.openpty()
    try:
        os.write(master, b"typed\n\x04")  # the end of input, as typed
        argv = command(options, "readlink /proc/self/fd/0 | sed 's|^pipe:.*|/pipe|'; cat")
        done = subprocess.run(
            argv, env=environ("n1", {}), stdin=slave, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    finally:
        os.close(master)
        os.close(slave)
    assert lines(done.stdout) == said


def test_streams_that_are_closed_are_no_trouble(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command("-n1 -o log", "cat; ls /proc/self/fd | wc -l")]
    subprocess.run(argv, env=environ("n1", {}), cwd=tmp_path, timeout=TIMEOUT_S, check=True)
    assert (tmp_path / "log").read_text() == "4\n"  # 0, 1, 2 and the one that lists


# --- ends

ENDS = [
    ("-N2 -n4", "exit 7", 7), ("-n4 -N1", "exit $((SLURM_PROCID / 2 * 3))", 3),
    ("-n2 -N1", "[ $SLURM_PROCID = 0 ] && kill -9 $$; exit 200", 137), ("-n1", "kill -SEGV $$", 139),
]  # fmt: skip


@pytest.mark.parametrize(("options", "script", "status"), ENDS)
def test_the_status_is_srun_s(local: Local, options: str, script: str, status: int) -> None:
    assert local(options, f"ulimit -c 0; {script}").returncode == status


@pytest.mark.parametrize(("program", "status", "why"), [("/no/such", 2, "No such file"), ("/etc/passwd", 13, "Permission")])
def test_a_program_that_cannot_be_run(program: str, status: int, why: str) -> None:
    argv = [*command("-n1", "")[:-3], program]
    done = subprocess.run(argv, env=environ("n1", {}), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == status
    assert f"n1: execve(): {program}: {why}" in done.stderr


@pytest.mark.parametrize("options", ["-n2", "-l -n2"])
def test_what_tasks_leave_behind_ends_with_them(local: Local, tmp_path: Path, options: str) -> None:
    began = time.monotonic()
    done = local(options, "(setsid sleep 300 & echo $! >pid.$SLURM_PROCID)")
    assert done.returncode == 0
    assert time.monotonic() - began < TIMEOUT_S
    assert [alive(int((tmp_path / f"pid.{rank}").read_text())) for rank in range(2)] == [False, False]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("argv", [["-n2"], ["-N9", "--", "true"], ["--nodes", "--", "true"]])
def test_what_makes_no_sense_is_one_line_and_a_status(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ftslurm.launchers.local_step", *argv],
        env=environ("n1", {}), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.startswith("ftrun: error: ")
    assert "Traceback" not in done.stderr


# --- signals


@contextmanager
def running(options: str, script: str, folder: Path, tasks: int = 2) -> Iterator[subprocess.Popen[str]]:
    """The step once every task has said `ready`."""
    process = subprocess.Popen(command(options, script), env=environ("n1,n2", {}), cwd=folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    assert process.stdout
    try:
        assert [process.stdout.readline() for _ in range(tasks)] == ["ready\n"] * tasks
        yield process
    finally:
        process.kill()
        process.communicate()


WAITING = "trap 'exit 9' {name}; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_reach_every_task_and_the_step_goes_on_from_there(tmp_path: Path, name: str) -> None:
    with running("-n2", WAITING.format(name=name), tmp_path) as process:
        process.send_signal(signal.Signals[f"SIG{name}"])
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 9


def test_a_terminal_s_interrupt_reaches_tasks_once(tmp_path: Path) -> None:
    script = "trap 'echo got' INT; echo ready; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done"
    with running("-n2", script, tmp_path) as process:
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=TIMEOUT_S)
    assert out == "got\ngot\n"


def test_two_interrupts_within_a_second_end_all(tmp_path: Path) -> None:
    script = "trap '' INT TERM; sleep 300 & echo $! >pid.$SLURM_PROCID; echo ready; wait"
    with running("-n2", script, tmp_path) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 137
    assert [alive(int((tmp_path / f"pid.{rank}").read_text())) for rank in range(2)] == [False, False]


def test_signals_reach_tasks_though_nobody_takes_their_output(tmp_path: Path) -> None:
    script = "trap 'exit 9' TERM; echo ready; yes & wait"
    process = subprocess.Popen(command("-l -n1", script), env=environ("n1", {}), cwd=tmp_path, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    try:
        assert process.stdout and process.stdout.readline() == b"0: ready\n"
        time.sleep(1.0)  # everything between the task and us fills up
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 9
    finally:
        process.kill()
        process.wait()


def test_tasks_are_told_when_the_step_dies(tmp_path: Path) -> None:
    script = "trap 'echo told >told.$SLURM_PROCID; exit' TERM; echo ready; while :; do sleep 0.05; done"
    with running("-n2", script, tmp_path) as process:
        process.kill()
        deadline = time.monotonic() + TIMEOUT_S
        while len(list(tmp_path.glob("told.*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert sorted(path.name for path in tmp_path.glob("told.*")) == ["told.0", "told.1"]


def test_a_waiting_step_costs_nothing(tmp_path: Path) -> None:
    with running("-l -n2", "echo ready; sleep 300", tmp_path, tasks=0) as process:
        time.sleep(1.0)
        before = cpu_ticks(process.pid)
        time.sleep(1.0)
        assert cpu_ticks(process.pid) - before <= 1


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
