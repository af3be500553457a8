"""ftrun stands where srun stood: the same command line gives the same output, files and exit status.

Each case is run by srun and by ftrun in one batch job, each in a folder of its own, and what is left is compared.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.stories import Plan, Stage, terminal

# The first test waits for all cases: 25 s where nothing else runs, ten times that on a busy machine.
pytestmark = [pytest.mark.live, pytest.mark.slurms, pytest.mark.timeout(400)]


@dataclass(frozen=True)
class Case:
    """args: after the launcher's name, as a shell reads them. before: shell lines. exact: stderr is compared too.

    status: None where it is srun's own affair, which changes from release to release.
    """

    args: str
    before: str = ""
    stdin: str = ""
    status: int | None = 0
    exact: bool = True

    @property
    def one_rank(self) -> bool:
        return self.args.startswith("-n1 ") and " : " not in self.args


# What a shell, make, Python and JSON trip over; each word arrives as it is, or quoting was lost on the way.
TORTURE = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "\\",
    "\\n",
    "new\nline",
    "tab\t",
    "$HOME",
    "`id`",
    "$(id)",
    "*",
    "?",
    "~",
    "!",
    "#",
    ";",
    "&",
    "|",
    ">",
    "--",
    "-n",
    "--ft-policy",
    "--ft-policy=x",
    "%t",
    "%",
    "{}",
    "[1]",
    "é",
    "\x01",
    "=",
    "a=b",
    "\\\\\"'",
]
ARGUMENTS = shlex.join(TORTURE)
SHOW = """printf '%s\\n' "$#"; for word in "$@"; do printf '<%s>\\n' "$word"; done"""

# What ftrun adds to a rank's environment, and nothing else: above all no secret of its own.
OURS = "FTSLURM_PAGE|FTSLURM_WATCH|PYTHONPATH|MA_SCHEDULE_CNT|MA_PROC_START_CNT|FTSLURM_ATTEMPT|FTSLURM_STEP_ATTEMPT|FTSLURM_RESTART_RUNG|FTSLURM_RESTART_CAUSE|FTSLURM_EXCLUDED_NODES"

CASES: dict[str, Case] = {
    # output
    "plain": Case("-n1 sh -c 'echo out; echo err >&2; printf no-newline'"),
    "many": Case("-n4 sh -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS'"),
    "label": Case("-l -n4 sh -c 'echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2'"),
    "label-long": Case("--label -N2 -n2 echo x"),
    "output-file": Case("-n3 -o 'out%t' sh -c 'echo $SLURM_PROCID'"),
    "output-one-file": Case("-n2 --output=out.txt sh -c 'echo $SLURM_PROCID'"),
    "error-file": Case("-n2 -e 'err%t' sh -c 'echo out; echo err $SLURM_PROCID >&2'"),
    "output-none": Case("-n2 -o none echo x"),
    "output-of-one-rank": Case("-n3 -o 1 sh -c 'echo $SLURM_PROCID'"),
    "binary": Case("-n1 sh -c 'printf \"\\000\\377\\r\\n\\033[0m\"'"),
    "much": Case("-n1 seq 1 40000"),  # MUCH
    "unbuffered": Case("-u -n1 sh -c 'printf a; printf b >&2'"),
    "quiet": Case("-Q -n1 true"),
    # input
    "stdin": Case("-n1 cat", stdin="one\ntwo\n"),
    "stdin-to-all": Case("-n3 sort", stdin="b\na\nc\n"),
    "stdin-to-one": Case("-n3 --input=1 sh -c 'echo $SLURM_PROCID $(cat)'", stdin="x\n"),
    "stdin-file": Case("-n2 -i in.txt cat", before="echo from-file >in.txt"),
    "stdin-none": Case("-n1 -i none sh -c 'cat; echo end'", stdin="not for you\n"),
    "stdin-large": Case("-n1 wc -c", stdin="0123456789\n" * 30000),
    # where and how
    "nodes": Case("-N2 -n2 sh -c 'echo $SLURM_NODEID $SLURM_STEP_NUM_NODES'"),
    "two-of-four": Case("-N2 -n4 --ntasks-per-node=2 sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID'"),
    "all-nodes": Case("--ntasks-per-node=1 sh -c 'echo $SLURM_NODEID'"),
    "nodelist": Case("-n1 -w \"$(scontrol show hostnames | tail -1)\" sh -c 'echo $SLURMD_NODENAME'"),
    "exclude": Case("-N1 -n1 -x \"$(scontrol show hostnames | head -1)\" sh -c 'echo $SLURMD_NODENAME'"),
    "cyclic": Case("-N2 -n4 -m cyclic sh -c 'echo $SLURM_PROCID $SLURM_NODEID'"),
    "relative": Case("-N2 -n2 -r 2 sh -c 'echo $SLURMD_NODENAME'"),
    "chdir": Case("-n1 -D / pwd"),
    "dashes": Case("-n1 -- echo -n -l --label"),
    "options-of-the-program": Case("-n1 echo -n4 --nodes=7 --ft-verbose -l"),
    "abbreviated": Case("--ntasks=2 --lab --unbuf echo x"),
    "cluster-of-letters": Case("-ln2 echo x"),
    "job-name": Case("-n1 -J named sh -c 'echo $SLURM_JOB_NAME'"),
    "threads": Case("-n1 -c2 sh -c 'echo $SLURM_CPUS_PER_TASK'"),
    "kill-on-bad-exit": Case("-n1 -K sh -c 'exit 3'", status=3, exact=False),  # of two, one may be killed before it fails
    "environment-options": Case(
        "sh -c 'echo $SLURM_PROCID $SLURM_NTASKS'", before="export SLURM_NTASKS=2 SLURM_LABELIO=1 SLURM_NNODES=1"
    ),
    "multi-prog": Case(
        "-n4 --multi-prog progs",
        before="""printf '%s\\n' '# programs' '0 echo first %t' "1-2 echo 'a  b' %t %o" "* sh -c 'echo rest \\$SLURM_PROCID'" >progs""",
    ),
    "multi-prog-quotes": Case("-n1 --multi-prog progs", before="""printf '%s\\n' '0 echo "a  b" c#d #e f\\ \\ g' >progs"""),
    "heterogeneous": Case("-n1 echo a : -n2 echo b"),
    # environment
    "export-none": Case("-n1 --export=NONE /bin/sh -c 'echo ${SECRET-unset} ${SLURM_PROCID-unset}'", before="export SECRET=x"),
    "export-one": Case("-n1 --export=VAR=y /bin/sh -c 'echo ${VAR-unset} ${SECRET-unset}'", before="export SECRET=x VAR=x"),
    "export-named": Case("-n1 --export=SECRET /bin/sh -c 'echo ${VAR-unset} ${SECRET-unset}'", before="export SECRET=x VAR=x"),
    "export-all-and": Case("-n1 --export=ALL,VAR='a b' sh -c 'echo ${VAR-unset} ${SECRET-unset}'", before="export SECRET=x"),
    "export-by-variable": Case("-n1 /bin/sh -c 'echo ${SECRET-unset}'", before="export SECRET=x SLURM_EXPORT_ENV=NONE"),
    "odd-environment": Case("-n1 sh -c 'echo \"$ODD\"'", before="export ODD=$'line\\nbreak \"quoted\" \\\\ é'"),
    "signals-as-found": Case("-n1 grep -E 'Sig(Ign|Blk)' /proc/self/status"),
    "limits": Case("-n1 sh -c 'ulimit -n; ulimit -c; umask'", before="ulimit -Sn 512; umask 027"),
    "variables": Case(
        "-n1 sh -c 'env -0 | sed -z s/=.*// | tr \\\\0 \\\\n | grep -vxE \"$OURS\" | sort'", before=f"export OURS='{OURS}'"
    ),
    "priorities": Case("-n2 sh -c 'nice; cat /proc/self/oom_score_adj; grep Cpus_allowed_list /proc/self/status'"),
    "kinds-of-descriptors": Case("-n2 sh -c 'readlink /proc/self/fd/[012] | sed s/[0-9]//g'", stdin="x"),
    "descriptors": Case("-n1 sh -c 'ls /proc/self/fd | wc -l'"),
    # arguments
    "torture": Case(f"-n1 sh -c {shlex.quote(SHOW)} sh {ARGUMENTS}"),
    "spaces-in-the-path": Case(
        "-n1 './a program' x", before="printf '#!/bin/sh\\necho ran $1\\n' >'a program'; chmod +x 'a program'"
    ),
    # exit status; stderr differs, as ftrun says why no rung helps
    "status-7": Case("-n1 sh -c 'exit 7'", status=7, exact=False),
    "status-of-one-of-two": Case("-n2 sh -c 'exit $((SLURM_PROCID * 9))'", status=9, exact=False),
    "status-255": Case("-n1 sh -c 'exit 255'", status=255, exact=False),
    "sigkill": Case("-n1 sh -c 'kill -KILL $$'", status=137, exact=False),
    "sigsegv": Case("-n1 sh -c 'kill -SEGV $$'", before="ulimit -c 0", status=139, exact=False),
    "sigabrt": Case("-n1 sh -c 'kill -ABRT $$'", before="ulimit -c 0", status=134, exact=False),
    "sigpipe": Case("-n1 sh -c 'kill -PIPE $$'", status=141, exact=False),
    "sigterm-by-itself": Case("-n1 sh -c 'kill -TERM $$'", status=143, exact=False),
    "not-executable": Case("-n1 ./file", before="touch file", status=None, exact=False),
    "not-found": Case("-n1 ./no-such-file", status=None, exact=False),
    "no-interpreter": Case("-n1 ./file", before="echo '#!/no/such' >file; chmod +x file", status=None, exact=False),
    "no-such-option": Case("--no-such-option -n1 true", status=None, exact=False),
    "too-many-nodes": Case("-N5 -n5 true", status=None, exact=False),
}


LANES = 2  # jobs that share the cases


def script(names: Sequence[str]) -> str:
    """Every case twice, in folders of its own."""
    lines: list[str] = []
    for name in names:
        case = CASES[name]
        for launcher in ("srun", "ftrun"):
            lines += [
                f'mkdir -p "$STORY/{name}/{launcher}"; cd "$STORY/{name}/{launcher}"',
                f'({case.before or ":"}\n timeout 120 {launcher} {case.args} <"$STORY/{name}.in" >stdout 2>stderr; echo $? >status)',
            ]
    return "\n".join(lines) + "\nexit 0\n"


# What only a busy machine has said: that a step takes long to end, or waits for the CPUs of the one before.
OF_A_BUSY_MACHINE = re.compile(
    r"^(?:ftrun: waiting for Slurm to end the step, |srun: Job \d+ step creation (?:temporarily|still) disabled, |srun: Step created for ).*\n",
    re.MULTILINE,
)
NO_LADDER = {"FTRUN_UNCONDITIONAL_REQUEUE_ENABLED": "false"}


@pytest.fixture(scope="module")
def compared(stage: Stage) -> dict[str, Path]:
    """Name of a case to the folder with what srun and ftrun left of it."""
    lanes = [list(CASES)[lane::LANES] for lane in range(LANES)]
    jobs = [
        stage.tell(
            Plan(
                nodes=4,
                tasks=2,
                script=script(names),
                sbatch=("--time=30",),
                env=NO_LADDER,
                files={f"{name}.in": CASES[name].stdin for name in names},
            ),
            "cases",
        )
        for names in lanes
    ]
    for told in jobs:
        told.ended("COMPLETED", timeout_s=360.0)
    return {name: told.folder / name for told, names in zip(jobs, lanes, strict=True) for name in names}


MUCH = "".join(f"{number}\n" for number in range(1, 40001))


def left_in(folder: Path, case: Case) -> dict[str, str]:
    """Every file that the case left but its status: name to content. Lines of several ranks come in any order; those that tell
    of a busy machine are left out.
    """
    found = {
        path.name: OF_A_BUSY_MACHINE.sub("", path.read_bytes().decode(errors="surrogateescape"))
        for path in folder.iterdir()
        if path.name not in ("status", *(() if case.exact else ("stderr",)))
    }
    return found if case.one_rank else {name: "".join(sorted(text.splitlines(keepends=True))) for name, text in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_does_what_srun_does(compared: dict[str, Path], name: str) -> None:
    case, srun, ftrun = CASES[name], compared[name] / "srun", compared[name] / "ftrun"
    if "unexpected eof reading message body" in (srun / "stderr").read_text(errors="replace"):
        pytest.skip("srun lost output of its own, as that of 26.05.5 does now and then")
    if name == "much" and (srun / "stdout").read_text() != MUCH:  # it does not always say so
        assert (ftrun / "stdout").read_text() == MUCH
        pytest.skip("srun lost output of its own, and said nothing")
    status = int((srun / "status").read_text())
    assert status == case.status or (case.status is None and status), "srun itself does not do what the case expects"
    assert int((ftrun / "status").read_text()) == status, (ftrun / "stderr").read_text(errors="replace")
    assert left_in(ftrun, case) == left_in(srun, case)


def test_the_torture_arrived_intact(compared: dict[str, Path]) -> None:
    out = (compared["torture"] / "ftrun/stdout").read_text()
    assert out == f"{len(TORTURE)}\n" + "".join(f"<{word}>\n" for word in TORTURE)


def test_in_salloc_the_program_s_status_comes_back_with_the_reason_why_nothing_helped(stage: Stage) -> None:
    """There is no batch script that Slurm could start again."""
    told = stage.prepare(Plan(rank="together; exit 7", tasks=2), "salloc-crash")
    done = told.salloc("ftrun", "sh", f"{told.folder}/rank.sh")
    assert done.returncode == 7, done.stderr
    assert "only a batch job can be requeued" in done.stderr
    assert told.counters() == [(1, 1, 1)]


def test_in_salloc_faults_are_healed_in_place(stage: Stage) -> None:
    told = stage.prepare(
        Plan(
            rank="""
        [ $MA_PROC_START_CNT = 1 ] || { echo well; exit 0; }
        [ $SLURM_PROCID = 1 ] && fault 0.0 80C98008
        exec sleep 100
    """,
            nodes=2,
        ),
        "salloc-fault",
    )
    done = told.salloc("ftrun", "sh", f"{told.folder}/rank.sh")
    assert (done.returncode, done.stdout) == (0, "well\nwell\n"), done.stderr
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]


@pytest.mark.parametrize("launcher", ["srun", "ftrun"])
def test_pty_gives_a_shell_with_a_terminal(stage: Stage, launcher: str) -> None:
    told = stage.prepare(Plan(), f"pty-{launcher}")
    with terminal(told, told.salloc_argv(launcher, "--pty", "sh", "-i")) as shell:
        shell.write("tty; stty size; echo sum=$((6 * 7))\n")
        assert "/dev/pts/" in shell.read_until("sum=42")
        # By the foreground program itself: before it is there, newer shells lose the Ctrl-C (seen on trixie and forky).
        shell.write("sh -c 'echo sleeping=$((40 + 3)); exec sleep 60'\n")
        shell.read_until("sleeping=43")
        shell.write("\x03")  # Ctrl-C is the foreground program's, the shell lives on
        shell.read_until("\n$ ")
        shell.write("echo alive=$((1 + 1))\n")
        shell.read_until("alive=2")
        shell.write("exit 0\n")
        assert shell.wait() == 0, shell.seen
    told.wait_nothing_left()
