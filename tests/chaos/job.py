"""One job on the cluster while chaos is at work on it: submitted, struck, tended as an operator would, ended, read."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ftslurm.model import record as rec
from ftslurm.model.folds.history import History, fold
from tests.chaos.evidence import Blow, Evidence, Help, read_beats, read_ledger, read_pairs, read_result, read_steps, read_text
from tests.chaos.plan import JobPlan, Strike
from tests.chaos.world import World
from tests.live.stories import Plan, Story, processes_with

PROGRAM = Path(__file__).with_name("program.py")
SMALL_DISK = "size=3m,mode=0777"

POLL_S, ASK_S = 0.1, 1.0
# Slurm's own delay of a requeue is 121 s: an operator who looks does not wait for it. Held longer than our own takes is cut in half.
LONG_WAIT_S, LONG_HELD_S = 25.0, 30.0
# From a strike to the next step; in between lie a lease, a node's boot, a clean-up that waits for it.
PROGRESS_S = 150.0
END_S = 240.0
FAIL_S = 180.0
GONE_S = 40.0


class Missed(Exception):
    """There was nobody to strike."""


@dataclass(frozen=True)
class Undo:
    at: float
    act: Callable[[], None]
    blow: int


class Job:
    """rng: for the strike at hand; set before each."""

    def __init__(self, world: World, plan: JobPlan) -> None:
        self.world = world
        self.plan = plan
        self.blows: list[Blow] = []
        self.missed: list[str] = []
        self.helped: list[Help] = []
        self.errors: list[str] = []
        self.undos: list[Undo] = []
        self.fields: dict[str, str] = {}
        self.rng = random.Random(0)
        self._asked = 0.0
        self._held_since = 0.0
        self._began = time.time()
        self.told = self._prepare()

    def _prepare(self) -> Story:
        p = self.plan
        story = Plan(rank='exec /usr/bin/python3 "$STORY/program.py"', nodes=p.nodes, tasks=p.tasks, ft=p.ft, script=p.script,
                     sbatch=("--exclusive", "--time=30", f"--nodes={p.nodes + p.spares}", *p.sbatch), env={**self.world.env, **p.env},
                     files={"program.py": PROGRAM.read_text()})  # fmt: skip
        told = self.world.stage.prepare(story, f"job-{p.number}-{p.shape}")
        if p.small_disk and os.geteuid() == 0:
            (told.folder / "state").mkdir()
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"{SMALL_DISK},uid={told.folder.stat().st_uid}", "tmpfs", told.folder / "state"],
                check=True,
            )
            (told.folder / "state").chmod(0o700)
        return told

    # ---- its life

    def live(self, enough: Callable[[], bool]) -> Evidence:
        """From submission to evidence; strikes until none is left or there is `enough`."""
        try:
            with self.world.alone():  # not while slurmctld is away
                self.told.submit()
            self.world.say(f"job {self.plan.number} ({self.plan.shape}, {self.plan.nodes}x{self.plan.tasks}) is {self.told.id}")
            for strike in self.plan.strikes:
                if (enough() and self.plan.expect.state == "COMPLETED") or not self._moment(strike):
                    break
                self._strike(strike)
            self._end()
        except Exception as error:  # the campaign goes on, and says so
            self.errors.append(f"{type(error).__name__}: {error}")
        finally:
            self._undo(everything=True)
            evidence = self._collect()
            self._close()
        return evidence

    def _moment(self, strike: Strike) -> bool:
        """Wait for it. False: the job is over."""
        began, steps = time.time(), self._steps()
        while not self.over and not (strike.soon and self.blows):
            if self._steps() > steps and self.running():
                break
            self.tend()
            if time.time() - max(began, self._undone()) > PROGRESS_S:
                raise AssertionError(f"no step was made for {PROGRESS_S:g} s")
        until = time.time() + strike.delay_s
        while time.time() < until and not self.over:
            self.tend()
        return not self.over

    def _strike(self, strike: Strike) -> None:
        from tests.chaos.faults import KINDS

        kind = KINDS[strike.kind]
        self.rng = random.Random(strike.key)
        at, attempt = time.time(), self.attempt()
        try:
            victim = kind.strike(self)
        except Missed as nobody:
            self.missed.append(f"{kind.name}: {nobody}")
            return
        blow = Blow(
            kind.name,
            at,
            attempt,
            victim,
            kind.ends,
            kind.outside,
            kind.isolates,
            over=time.time(),
            status=self.status_of(victim),
        )
        self.blows.append(blow)
        self.world.struck(self, blow)
        self.world.say(f"job {self.plan.number} attempt {attempt}: {kind.name}: {victim}")

    @staticmethod
    def status_of(victim: str) -> int:
        """Of a rank that was told to exit with one."""
        return int(victim.rpartition(" ")[2]) if "with status" in victim else 0

    def _end(self) -> None:
        """Let it come to its end; one that is to fail needs no leave."""
        limit_s = FAIL_S
        if self.plan.expect.state == "COMPLETED":
            self.told.allow("enough")
            limit_s = END_S
        began = time.time()
        while not self.over:
            self.tend()
            if time.time() - max(began, self._undone()) > limit_s:
                raise AssertionError(f"it has not ended {limit_s:g} s after it could")

    def _close(self) -> None:
        if not self.over and self.told.id:
            self.world.cluster.run(["scancel", "--quiet", str(self.told.id)])
        if (self.told.folder / "state").is_mount():
            shutil.copytree(self.told.folder / "state", self.told.folder / "state.kept", ignore_dangling_symlinks=True)
            deadline = time.monotonic() + GONE_S
            while (
                subprocess.run(["umount", self.told.folder / "state"], check=False, capture_output=True).returncode
                and time.monotonic() < deadline
            ):
                time.sleep(POLL_S)

    # ---- what an operator does

    def tend(self) -> None:
        """A moment's wait: what is due is undone, and a job that Slurm keeps waiting needlessly is helped on."""
        time.sleep(POLL_S)
        self._undo()
        if time.monotonic() - self._asked < ASK_S:
            return
        self.ask()
        if self.fields.get("JobState") != "PENDING":
            self._held_since = 0.0
        elif self.fields.get("Priority") == "0":
            self._held_since = self._held_since or time.monotonic()
            if time.monotonic() - self._held_since > LONG_HELD_S:
                self._finish_by_hand()
        elif self._starts_in() > LONG_WAIT_S:
            self.helped.append(Help("start", time.time(), f"its start in {self._starts_in():.0f} s was brought forward"))
            self.world.operator("scontrol", "update", f"JobId={self.told.id}", "StartTime=now+2")

    def ask(self) -> None:
        self._asked = time.monotonic()
        answer = self.world.ask_job(self.told.id)
        self.fields = answer or self.fields

    def _starts_in(self) -> float:
        try:
            return time.mktime(time.strptime(self.fields.get("EligibleTime", ""), "%Y-%m-%dT%H:%M:%S")) - time.time()
        except ValueError:
            return 0.0

    def _finish_by_hand(self) -> None:
        self._held_since = 0.0
        done = self.world.cluster.run(["ftslurm", "requeue", "--finish", str(self.told.id)], env=self.told.env)
        self.helped.append(
            Help("held", time.time(), f"it was held, and `ftslurm requeue --finish` said: {(done.stdout + done.stderr).strip()}")
        )
        if "nothing to do" in done.stdout or done.returncode:
            self.world.operator("scontrol", "release", str(self.told.id))

    @property
    def over(self) -> bool:
        return self.fields.get("JobState", "PENDING") not in (
            "PENDING",
            "RUNNING",
            "COMPLETING",
            "SUSPENDED",
            "CONFIGURING",
            "REQUEUED",
        )

    # ---- undoing

    def undo_in(self, seconds: float, act: Callable[[], None]) -> None:
        self.undos.append(Undo(time.time() + seconds, act, len(self.blows)))

    def _undo(self, everything: bool = False) -> None:
        for undo in [one for one in self.undos if everything or one.at <= time.time()]:
            self.undos.remove(undo)
            try:
                undo.act()
            except Exception as error:
                self.errors.append(f"could not be undone: {type(error).__name__}: {error}")
            if undo.blow < len(self.blows):
                self.blows[undo.blow] = replace(self.blows[undo.blow], over=time.time())

    def _undone(self) -> float:
        """When the last blow was over, or will be."""
        return max([undo.at for undo in self.undos] + [blow.over for blow in self.blows], default=0.0)

    # ---- looking

    def ledger(self) -> tuple[rec.Record, ...]:
        with suppress(Exception):  # the disk is full, say
            return read_ledger(self.told.folder)[0]
        return ()

    def history(self) -> History:
        return fold(self.ledger())

    def attempt(self) -> int:
        return self.history().attempts

    def _steps(self) -> int:
        return len(read_pairs(self.told.folder / "commits"))

    def running(self) -> dict[int, int]:
        """rank -> pid of its program, in the newest attempt, alive."""
        pids = self.told.pids()
        newest = [start for start in self.told.starts() if start.attempt == str(self.attempt())]
        return {start.rank: pid for start in newest if (pid := pids.get((start.node, start.pid)))}

    def wait_running(self, timeout_s: float = 8.0) -> dict[int, int]:
        """Raises: Missed."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.running()):
            if time.monotonic() > deadline or self.over:
                raise Missed("no rank runs")
            self.tend()
        return found

    def processes(self, *words: str) -> dict[int, str]:
        """Those whose command holds all words: pid to command."""
        return {pid: command for pid, command in self.told.processes().items() if all(word in command for word in words)}

    def one(self, what: str, *words: str) -> int:
        """Any of them. Raises: Missed."""
        found = sorted(self.processes(*words))
        if not found:
            raise Missed(f"there is no {what}")
        return self.rng.choice(found)

    def nodes(self) -> list[str]:
        """Of the newest attempt, in the order of ranks; else what Slurm says."""
        seen = {start.rank: start.node for start in self.told.starts() if start.attempt == str(self.attempt())}
        return list(dict.fromkeys(seen[rank] for rank in sorted(seen)))

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Raises: Missed."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise Missed("it has just ended") from None

    # ---- the end

    def _collect(self) -> Evidence:
        folder, ledger, damaged = self.told.folder, (), 0
        self._wait_gone()
        with suppress(AssertionError):
            self.ask()
        try:
            ledger, damaged = read_ledger(folder)
            starts = tuple(self.told.starts())
        except Exception as error:
            self.errors.append(f"the evidence cannot be read: {type(error).__name__}: {error}")
            starts = ()
        left = processes_with(f"STORY={folder}")
        status, _, by_signal = self.fields.get("ExitCode", "0:0").partition(":")
        result = read_result(folder / "result")
        conflicts = tuple(read_text(folder / "conflicts").splitlines())
        beside = [blow for blow in self.world.beside(self)]
        blows = tuple(sorted([*self.blows, *beside], key=lambda blow: blow.at))
        return Evidence(
            self.plan, self.told.id, self.fields.get("JobState", "") if self.over else "", int(status) or 128 * bool(int(by_signal)) + int(by_signal),
            self.world.queued(self.told.id) or self.world.has_donors(self.told.id), ledger, damaged, starts, tuple(read_steps(folder)), read_beats(folder),
            read_pairs(folder / "commits"), conflicts, result, blows, left, tuple(self.helped), tuple(self.errors),
            time.time() - self._began, str(folder),
        )  # fmt: skip

    def _wait_gone(self) -> None:
        if not self.over:
            self._keep_scene()
            self.world.cluster.run(["scancel", "--quiet", str(self.told.id)])
        deadline = time.monotonic() + GONE_S
        while (self.told.processes() or self.world.queued(self.told.id)) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _keep_scene(self) -> None:
        """How it stood when we lost patience."""
        words = self.world.cluster.run(["scontrol", "show", "job", str(self.told.id)]).stdout
        running = "\n".join(f"{pid} {command}" for pid, command in sorted(self.told.processes().items()))
        (self.told.folder / "scene").write_text(f"{words}\n{running}\n{self.world.cluster.run(['sinfo', '-N', '-l']).stdout}")
