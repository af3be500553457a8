"""Bad input and a world that fails: one clear sentence with the place and the mend, a fixed exit status, nothing lost."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ftslurm.errors import CommandMissing, PolicyError, SlurmUnavailable, StateError, UsageError
from tests.live.conftest import Cluster, booted, new_stage
from tests.live.stories import Plan, Stage, Story, story

pytestmark = pytest.mark.live


@dataclass(frozen=True)
class Case:
    """ft: ftrun's options. words: what the sentence has to hold. before: shell lines. env: for ftrun alone."""

    ft: str
    status: int
    words: tuple[str, ...]
    before: str = ""
    files: dict[str, str] = field(default_factory=dict)


def policy(text: str, *words: str) -> Case:
    return Case("--ft-policy policy.yaml", PolicyError.exit_status, ("policy.yaml", *words), files={"policy.yaml": text})


def annotations(text: str, *words: str) -> Case:
    return Case("--ft-annotations job.json", PolicyError.exit_status, ("job.json", *words), files={"job.json": text})


RETRY = "fault-tolerance/job-retry-num"
# PATH without srun, or without scontrol, but with all else.
ONLY = 'mkdir bin && ln -s /usr/bin/{sh,bash,env,true,touch,%s} "$(command -v ftrun)" bin/; export PATH=$PWD/bin'

CASES: dict[str, Case] = {
    "policy-typo": policy("# ours\nmax_restart: 3\n", "line 2", "`max_restart`", "did you mean `max_restarts`?"),
    "policy-wrong-unit": policy("stop:\n  grace: 20x\n", "line 2", "stop.grace", "`20x`"),
    "policy-no-unit": policy("stop:\n  grace: fast\n", "line 2", "stop.grace", "`fast`"),
    "policy-unknown-rung": policy("ladder: [in-place-restart, reboot]\n", "line 1", "ladder", "`reboot`", "in-place-restart"),
    "policy-unknown-rung-section": policy(
        "rungs:\n  in-place-restarts:\n    enabled: true\n",
        "line 3",
        "`rungs.in-place-restarts.enabled`",
        "did you mean `rungs.in-place-restart.enabled`?",
    ),
    "policy-out-of-range": policy("max_restarts: 129\n", "line 1", "129", "0 to 128"),
    "policy-twice": policy("max_restarts: 3\nmax_restarts: 4\n", "line 2", "twice"),
    "policy-not-yaml": policy("max_restarts: [3\n", "line", "not YAML"),
    "policy-not-a-mapping": policy("- 3\n", "mapping"),
    "policy-not-text": policy("\udcff\udcfe", "not text"),
    "policy-missing": Case("--ft-policy no/policy.yaml", PolicyError.exit_status, ("no/policy.yaml", "No such file")),
    "policy-is-a-folder": Case("--ft-policy .", PolicyError.exit_status, (" . ", "directory")),
    "profile-unknown": Case("--ft-profile modelart", PolicyError.exit_status, ("`modelart`", "did you mean `modelarts`?")),
    "annotation-0": annotations(f'{{"{RETRY}": "0"}}', RETRY, "1 to 128"),
    "annotation-129": annotations(f'{{"{RETRY}": "129"}}', RETRY, "129", "1 to 128"),
    "annotation-word": annotations(f'{{"{RETRY}": "many"}}', RETRY, "`many`"),
    "annotation-alone": annotations('{"fault-tolerance/hang-retry": "true"}', "only together with", RETRY),
    "annotation-unknown": annotations(f'{{"{RETRY}": "3", "fault-tolerance/job-retries": "3"}}', "fault-tolerance/job-retries"),
    "annotation-not-json": annotations(f'{{"{RETRY}": 3', "not JSON"),
    "option-unknown": Case("--ft-max-restart 3", UsageError.exit_status, ("--ft-max-restart", "--ft-max-restarts")),
    "option-value": Case("--ft-max-restarts 129", PolicyError.exit_status, ("--ft-max-restarts", "0 to 128")),
    "set-unknown": Case("--ft-set stop.grac=3s", PolicyError.exit_status, ("--ft-set stop.grac", "did you mean `stop.grace`?")),
    "set-without-value": Case("--ft-set stop.grace", UsageError.exit_status, ("--ft-set stop.grace", "NAME=VALUE")),
    "variable-typo": Case(
        "", PolicyError.exit_status, ("FTRUN_STOP_GRAC", "FTRUN_STOP_GRACE"), before="export FTRUN_STOP_GRAC=3s"
    ),
    "variable-value": Case(
        "", PolicyError.exit_status, ("environment FTRUN_STOP_GRACE", "`20x`"), before="export FTRUN_STOP_GRACE=20x"
    ),
    "state-not-writable": Case("--ft-state-dir /proc/ftslurm", StateError.exit_status, ("/proc/ftslurm", "FTSLURM_STATE_DIR")),
    "state-closed": Case(
        "--ft-state-dir $PWD/closed",
        StateError.exit_status,
        ("closed", "FTSLURM_STATE_DIR"),
        before="mkdir -p closed/jobs; chmod 500 closed/jobs",
    ),
    "state-a-file": Case(
        "--ft-state-dir $PWD/file/state", StateError.exit_status, ("file/state", "FTSLURM_STATE_DIR"), before="touch file"
    ),
    "state-of-another": Case("--ft-state-dir /usr", StateError.exit_status, ("/usr", "FTSLURM_STATE_DIR")),
    "no-srun": Case("", CommandMissing.exit_status, ("`srun`", "PATH"), before=ONLY.replace("%s", "scontrol")),
    "no-scontrol": Case("", CommandMissing.exit_status, ("scontrol", "PATH"), before=ONLY.replace("%s", "srun")),
    "multi-prog-missing": Case("--multi-prog no-such-file", UsageError.exit_status, ("no-such-file", "--multi-prog")),
}


def script() -> str:
    lines = []
    for name, case in CASES.items():
        lines += [
            f'mkdir -p "$STORY/cases/{name}"; cd "$STORY/cases/{name}"; cp "$STORY/{name}."* . 2>/dev/null',
            *(f"mv {name}.{file} {file}" for file in case.files),
            f"({case.before or ':'}\n ftrun -n1 {case.ft} touch ran >stdout 2>stderr; echo $? >status) &",
            "[ $(jobs -r | wc -l) -lt 3 ] || wait -n",
        ]
    return "\n".join([*lines, "wait", "exit 0"]) + "\n"


@pytest.fixture(scope="module")
def tried(stage: Stage) -> Story:
    """The job that made every mistake."""
    told = stage.prepare(Plan(script=script(), tasks=4), "mistakes")
    for name, case in CASES.items():
        for file, text in case.files.items():
            (told.folder / f"{name}.{file}").write_bytes(text.encode(errors="surrogateescape"))
    told.submit().ended("COMPLETED", timeout_s=120.0)
    return told


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_gets_one_sentence_with_place_and_mend(tried: Story, name: str) -> None:
    case, left = CASES[name], tried.folder / "cases" / name
    stderr = (left / "stderr").read_text()
    assert int((left / "status").read_text()) == case.status, stderr
    assert len(stderr.splitlines()) == 1 and stderr.startswith("ftrun: "), stderr
    assert [word for word in case.words if word not in stderr] == [], stderr
    assert not (left / "ran").exists(), "the program ran"
    assert (left / "stdout").read_text() == ""


def test_nothing_is_left_of_the_mistakes(tried: Story) -> None:
    tried.wait_nothing_left()
    ledgers = list(tried.folder.glob("state/jobs/*.jsonl"))
    assert len(ledgers) <= 1  # the one of the job, from the mistakes that are found late


@story(sbatch=(f"""--comment={{"{RETRY}":"129"}}""",), rank="exit 0")
def test_a_mistake_in_the_comment_is_told_as_well(told: Story) -> None:
    assert told.ended("FAILED")["ExitCode"] == f"{PolicyError.exit_status}:0"
    (line,) = told.output().splitlines()
    assert [word for word in ("the job's comment", RETRY, "129", "1 to 128") if word not in line] == [], line
    assert told.starts() == []


@story(sbatch=("--comment=see {ticket} 4711",), rank="exit 0")
def test_any_other_comment_is_nobody_s_mistake(told: Story) -> None:
    told.ended("COMPLETED")
    assert told.output() == ""


# ---- a full disk


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A file system of that size at `folder`, the job user's."""
    folder.mkdir()
    options = f"size={kilobytes}k,mode=0700,uid={pwd.getpwnam(folder.parent.owner()).pw_uid}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "ftslurm-test", folder], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"root may not mount here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


FILL = 'cat /dev/zero >"$STORY/disk/filler" 2>/dev/null'
ONE_FILLS = (
    '[ $SLURM_PROCID = 0 ] && [ ! -e "$STORY/filled" ] && { %BEFORE%\n' + FILL + '; touch "$STORY/filled"; }\nawait filled\n'
)
# No space is left in the ledger's last page either: empty lines, which say nothing, fill it up.
NOT_A_BYTE = """
rm -f "$STORY"/disk/jobs/*.reserve
for ledger in "$STORY"/disk/jobs/*.jsonl; do
    until [ $(($(stat -c %s "$ledger") % 4096)) = 0 ]; do echo >>"$ledger"; done
done
"""
ON_A_SMALL_DISK = {
    "full-from-the-start": Plan(script=FILL + "\nexec %RUN%"),
    "fills": Plan(
        tasks=2,
        rank=ONE_FILLS.replace("%BEFORE%", "")
        + """
        case $MA_SCHEDULE_CNT.$MA_PROC_START_CNT in
        1.1) [ $SLURM_PROCID = 0 ] && fault 0.0 80C98008; exec sleep 100;;
        1.2) together; exit 3;;
        esac
        """,
    ),
    "not-a-byte-left": Plan(
        tasks=2,
        script="exec %RUN%",
        rank=ONE_FILLS.replace("%BEFORE%", NOT_A_BYTE)
        + """
        together; [ $SLURM_PROCID = 1 ] && exit 3; exec sleep 100
        """,
    ),
}


@pytest.fixture(scope="module")
def on_small_disks(stage: Stage) -> Iterator[dict[str, Story]]:
    """The jobs of the three, each with its state folder on a disk of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    with ExitStack() as disks:
        found = {}
        for name, plan in ON_A_SMALL_DISK.items():
            told = stage.prepare(replace(plan, env={"FTSLURM_STATE_DIR": "%STORY%/disk"}), name)
            disks.enter_context(small_disk(told.folder / "disk", 512))
            found[name] = told.submit()
        yield found


def test_a_disk_that_is_full_from_the_start_is_said_and_the_step_runs(on_small_disks: dict[str, Story]) -> None:
    told = on_small_disks["full-from-the-start"]
    told.ended("COMPLETED")
    line = told.output().splitlines()[0]
    assert f"{told.folder}/disk" in line and "No space left" in line and "cannot be requeued" in line
    assert len(told.starts()) == 1


def test_a_disk_that_fills_while_the_job_runs_stops_no_remedy(on_small_disks: dict[str, Story]) -> None:
    """Space was kept back for the decisions that count: here a restart in place and a requeue."""
    told = on_small_disks["fills"]
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (1, 2, 2), (2, 1, 3)]
    assert (told.folder / "disk/filler").stat().st_size > 100_000


def test_what_cannot_be_written_down_is_not_done(on_small_disks: dict[str, Story]) -> None:
    """Not even the kept space is there: the job ends as if there were no ladder, and the ledger is whole."""
    told = on_small_disks["not-a-byte-left"]
    job = told.ended("FAILED")
    assert (job["Restarts"], job["ExitCode"]) == ("0", "3:0")
    assert "No space left" in told.output() and "ftrun takes no remedy" in told.output()
    assert told.counters() == [(1, 1, 1)]
    told.wait_nothing_left()
    status = told.json("status", str(told.id))
    assert (status["attempt"], status["damaged"]) == (1, 0)


@story(
    tasks=2,
    script="exec %RUN%",
    rank="""
together
[ $SLURM_PROCID = 0 ] && { mv "$STORY/state" "$STORY/moved"; exit 3; }
exec sleep 100
""",
)
def test_so_it_is_when_the_state_folder_goes_away(told: Story) -> None:
    job = told.ended("FAILED")
    assert (job["Restarts"], job["ExitCode"]) == ("0", "3:0")
    assert "ftrun takes no remedy" in told.output() and f"{told.folder}/state" in told.output()
    told.wait_nothing_left()


# ---- slurmctld does not answer: on a cluster of its own, as the others need theirs


@contextmanager
def away(cluster: Cluster) -> Iterator[None]:
    """slurmctld is stopped meanwhile."""
    cluster.tool("ctld-stop")
    try:
        yield
    finally:
        cluster.tool("ctld-start")


IMPATIENT = "--ft-set slurm.timeout=4s --ft-set slurm.patience=0s"
TELLS_STATUS = '%RUN%\necho $? >"$STORY/status"'


def status_of(told: Story) -> str:
    """The exit status of ftrun, once the script has told it."""
    path = told.folder / "status"
    return told.wait_for(lambda: path.exists() and path.read_text().strip(), "ftrun to end")


def agents_of(told: Story) -> int:
    return sum("ftslurm.wrapper.agent.agent" in words and not words.startswith("srun") for words in told.processes().values())


WITHOUT_SLURMCTLD = {
    "starts": Plan(ft=IMPATIENT, script='touch "$STORY/ready"\nuntil [ -e "$STORY/away" ]; do sleep 0.1; done\n' + TELLS_STATUS),
    "heals": Plan(
        nodes=2,
        tasks=2,
        ft=IMPATIENT,
        rank="""
        [ $MA_PROC_START_CNT = 1 ] || exit 0
        await away
        [ $SLURM_PROCID = 3 ] && fault 0.0 80C98008
        exec sleep 100
        """,
    ),
    "crashes": Plan(tasks=2, ft=IMPATIENT, rank="await away; exit 3", script=TELLS_STATUS),
    "crashes-patiently": Plan(
        tasks=2, ft="--ft-set slurm.timeout=50s", rank="[ $MA_SCHEDULE_CNT = 2 ] && exit 0; await away; exit 3"
    ),
}


@pytest.fixture(scope="module")
def without_slurmctld(job_path: tuple[Path, ...]) -> Iterator[dict[str, Story]]:
    """All of them began with slurmctld there, met their trouble while it was away, and see it come back."""
    with booted(nodes=3) as own, new_stage(own, job_path) as lonely:
        jobs = {name: lonely.tell(plan, name) for name, plan in WITHOUT_SLURMCTLD.items()}
        jobs["starts"].wait_for(lambda: (jobs["starts"].folder / "ready").exists(), "the script to begin")
        for name in ("heals", "crashes", "crashes-patiently"):
            jobs[name].wait_started()
        jobs["heals"].wait_for(lambda: agents_of(jobs["heals"]) == 2, "the agents to come up, for which slurmctld is needed")
        with away(own):
            for told in jobs.values():
                told.allow("away")
            for name in ("starts", "crashes"):
                status_of(jobs[name])
            jobs["heals"].wait_started(attempt=2)
        yield jobs


def test_ftrun_says_so_when_slurmctld_does_not_answer(without_slurmctld: dict[str, Story]) -> None:
    told = without_slurmctld["starts"]
    assert status_of(told) == str(SlurmUnavailable.exit_status)
    (line,) = told.output().splitlines()
    assert line.startswith("ftrun: ") and "slurmctld" in line
    assert told.starts() == []
    told.ended("COMPLETED")  # the script's own last word was `echo`


def test_without_slurmctld_ranks_run_on_and_are_restarted_in_place(without_slurmctld: dict[str, Story]) -> None:
    told = without_slurmctld["heals"]
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    assert {start.step for start in told.starts()} == {f"{told.id}.0"}


def test_a_requeue_that_slurmctld_never_hears_of_fails_with_the_reason(without_slurmctld: dict[str, Story]) -> None:
    told = without_slurmctld["crashes"]
    assert status_of(told) == "3"
    assert "Slurm did not say how the job stands" in told.output()
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]
    told.wait_nothing_left()


def test_a_requeue_waits_for_a_slurmctld_that_comes_back_in_time(without_slurmctld: dict[str, Story]) -> None:
    told = without_slurmctld["crashes-patiently"]
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
