"""Where the ledgers are: `<state folder>/jobs/<cluster>.<job>.jsonl`, one for each array task; where the state folder cannot be
used, in another place, for what srun would run runs all the same."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ftslurm.errors import NoRoom, StateError, UnknownJob
from ftslurm.ledger.journal import Contents, Journal
from ftslurm.model.folds.history import History, fold
from ftslurm.model.record import RunBegan
from ftslurm.model.rungs import REQUEUES
from ftslurm.model.values import Value
from ftslurm.system.files import check_room, private_folder


class Opened(Value):
    """A job's ledger. lasts: will the next scheduling of the job find it, on whichever node?"""

    store: Store
    journal: Journal
    history: History
    lasts: bool = True


def open_ledger(env: Mapping[str, str], me: Identity, say: Callable[[str], None]) -> Opened:
    """In the state folder, else in a folder of this node, which `say` is told. Raises: StateError if there is none either, or
    for a folder that the user has named and that cannot be used, however much room there is."""
    try:
        store = Store(state_folder(env))
        return Opened(store, *store.open(me))
    except StateError as error:
        if env.get(VARIABLE) and not isinstance(error, NoRoom):
            raise
        return _open_here(env, me, error, say)


def _open_here(env: Mapping[str, str], me: Identity, why: StateError, say: Callable[[str], None]) -> Opened:
    for folder in dict.fromkeys((env.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm")):  # noqa: S108 -- private_folder looks whose it is
        store = Store(Path(folder).absolute() / f"ftslurm-state-{os.getuid()}")
        try:
            found = Opened(store, *store.open(me), lasts=False)
        except StateError:
            continue
        say(f"{why}; the ledger is in {store.root} of this node, and the job cannot be requeued: set {VARIABLE}")
        return found
    raise why


VARIABLE = "FTSLURM_STATE_DIR"
_STEP = r"(\d+(?:_\d+)?)\.(?:\d+|batch|extern|interactive)(?:\+\d+)?"
# As squeue writes those that wait; a limit behind `%` may follow.
_ARRAY = r"(\d+)(?:_\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)(?:%\d+)?\])?"
LOCAL_CLUSTER = "local"


class Identity(Value):
    """Distinguishes a requeued job from another job that got the same number. Unix seconds.

    start_time: of this scheduling. submit_time: when the job got its number, or was requeued; 0 if not known.
    """

    cluster: str
    job: str
    restarts: int
    start_time: int
    name: str
    submit_time: int = 0


def state_folder(env: Mapping[str, str]) -> Path:
    """FTSLURM_STATE_DIR, else `.ftslurm` in the home folder; not made yet. Raises: StateError.

    A job that came with an environment of its own (--export=NONE, slurmrestd) may have no HOME; the password database knows it.
    """
    if given := env.get(VARIABLE):
        return Path(given).absolute()
    try:
        home = env.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        home = ""
    if not home:
        raise StateError("there is no home folder to keep the ledger in", hint=f"set {VARIABLE}")
    return Path(home) / ".ftslurm"


class Store:
    """The ledgers of one user."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, me: Identity) -> tuple[Journal, History]:
        """The ledger of this job, made if need be; that of another job under the same number is put aside first.

        Raises: StateError.
        """
        folder = self._folder()
        journal = Journal(self._path(me))
        history = fold(journal.read().records)
        if history.last_run is None:
            check_room(folder)  # an older ledger has a reserve
        if history.last_run is None or continues(history, me):
            return journal, history
        self._put_aside(journal)
        return Journal(journal.path), History()

    def peek(self, me: Identity) -> Contents:
        """The content of the ledger under this job's number, whichever job wrote it; creates nothing. Raises: StateError."""
        return Journal(self._path(me)).read()

    def _path(self, me: Identity) -> Path:
        return self.root.joinpath(*ledger_parts(me.cluster, me.job))

    def new_local(self) -> tuple[int, Journal]:
        """The next free number for a local job, and its ledger. Raises: StateError."""
        folder = self._folder()
        taken = [_number(path) for path in folder.glob(f"{LOCAL_CLUSTER}.*.jsonl")]
        number = max(taken, default=0) + 1
        while True:
            path = folder / f"{LOCAL_CLUSTER}.{number}.jsonl"
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
                return number, Journal(path)
            except FileExistsError:
                number += 1  # another ftrun took it just now
            except OSError as error:
                raise StateError(f"the ledger {path} cannot be made: {error.strerror}", hint=f"set {VARIABLE}") from None

    def find(self, job: str) -> tuple[Journal, Contents]:
        """The ledger of `job`: `123`, `123_4`, `local.2`, `cluster.123`, or a step's `123.0`. Raises: UnknownJob, StateError."""
        names = (job, step[1]) if (step := re.fullmatch(_STEP, job)) else (job,)
        wanted = [path for path in self._paths() if path.stem in names or path.stem.partition(".")[2] in names]
        # The same number on several clusters and locally: Slurm's come before local ones, the latest first.
        wanted.sort(key=lambda path: (path.stem.startswith(f"{LOCAL_CLUSTER}."), -_changed_at(path)))
        if not wanted:
            tasks = self.tasks(job)
            hint = f"name one of {tasks[0]} to {tasks[-1]}" if tasks else f"`ftslurm status` lists all; is {VARIABLE} set?"
            raise UnknownJob(f"there is no ledger of job {job} in {self.root}", hint=hint)
        journal = Journal(wanted[0])
        return journal, journal.read()

    def read(self, job: str) -> tuple[Journal, Contents]:
        """As `find`, or the ledger at a path: for those who only read. Raises: UnknownJob, StateError."""
        return at_path(Path(job)) if is_path(job) else self.find(job)

    def tasks(self, array: str) -> list[str]:
        """Those of an array (`28`, `28_[1-10]`) that have ledgers, by number; empty for a job of its own. Raises: StateError."""
        if (named := re.fullmatch(_ARRAY, array)) is None:
            return []
        names = [path.stem.partition(".")[2] for path in self._paths()]
        if array in names:
            return []
        found = [name.partition("_") for name in names]
        indexes = {int(index) for job, _, index in found if job == named[1] and index.isdecimal()}
        return [f"{named[1]}_{index}" for index in sorted(indexes) if named[2] is None or _is_in(named[2], index)]

    def _folder(self) -> Path:
        private_folder(self.root)
        return private_folder(self.root / "jobs")

    def _paths(self) -> list[Path]:
        """Raises: StateError."""
        try:
            return ledgers_in(self.root / "jobs")
        except OSError as error:
            raise StateError(f"{self.root} cannot be read: {error.strerror}", hint="check its owner and rights") from None

    def _put_aside(self, journal: Journal) -> None:
        number = 1
        while (aside := journal.path.with_suffix(f".was.{number}.jsonl")).exists():
            number += 1
        try:
            journal.path.rename(aside)
        except OSError as error:
            raise StateError(f"{journal.path} cannot be put aside: {error.strerror}", hint="move it away by hand") from None


def ledgers_in(folder: Path) -> list[Path]:
    """Without those of other jobs that had the same number."""
    return [path for path in folder.glob("*.jsonl") if ".was." not in path.name]


def is_path(word: str) -> bool:
    """Whether it names a ledger's file, and no job."""
    return "/" in word or word.endswith(".jsonl")


def _is_in(ranges: str, index: int) -> bool:
    """`1-3,7`, as squeue has it."""
    parts = [part.partition("-") for part in ranges.split(",")]
    return any(int(low) <= index <= int(high or low) for low, _, high in parts)


def at_path(path: Path) -> tuple[Journal, Contents]:
    """Raises: UnknownJob, StateError."""
    journal = Journal(path)
    contents = journal.read()
    if not contents.records and not journal.known:
        raise UnknownJob(f"there is no ledger {path}, or it is empty", hint="`ftslurm status` lists your jobs")
    return journal, contents


def ledger_parts(cluster: str, job: str) -> tuple[str, str]:
    """Where a job's ledger lies below the state folder. job: `123`, or `123_4` for a task of an array."""
    return "jobs", f"{_safe(cluster)}.{_safe(job)}.jsonl"


def continues(history: History, me: Identity) -> bool:
    """Is the ledger's job the one that runs now, or an older one whose number was given out again?

    Slurm keeps no identity of a job over a requeue but its number (submit and start time are set anew), so what counts
    is that the requeues go up: the same scheduling, or a later one of a job with the same name. Renamed meanwhile, a
    script is told the old name by 22.05 and the new one by 24.11 and later: then our own requeue is the link.

    A slurmctld that died before it saved its state starts a job again without counting that, or counts less than before. Such
    a job was submitted before the last run, when nobody else can have had its number.
    """
    last = history.last_run
    if last is None:
        return False
    if me.restarts <= last.schedule and last.name == me.name and 0 < me.submit_time <= last.at:
        return True
    if me.restarts == last.schedule:  # 22.05 does not tell a script when it started
        return last.name == me.name and (me.start_time == last.start_time or not me.start_time)
    return me.restarts > last.schedule and (last.name == me.name or _requeued_by_us(history, last, me))


def _requeued_by_us(history: History, last: RunBegan, me: Identity) -> bool:
    """Is this the scheduling after the last run, which ended with a requeue of ours?"""
    decided = history.last_decision
    return decided is not None and decided.rung in REQUEUES and decided.at >= last.at and me.restarts == last.schedule + 1


def _safe(text: str) -> str:
    """The text as a file name, harmless even if the cluster's name is hostile."""
    safe = "".join(char if char.isalnum() or char in "_-" else "-" for char in text) or "cluster"
    return "cluster-local" if safe == LOCAL_CLUSTER else safe


def _changed_at(path: Path) -> float:
    """When the file changed, Unix seconds; 0 if it does not exist. Follows no links."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _number(path: Path) -> int:
    text = path.stem.partition(".")[2]
    return int(text) if text.isascii() and text.isdigit() else 0  # `²` is a digit, and no number


# --- ledgers as a command line names them: a job, a file, a folder with ledgers, or all of the user's own

ALL = "all"


def named_ledgers(store: Store, names: Sequence[str], passed_over: Callable[[object], None]) -> Iterator[tuple[str, Contents]]:
    """Each ledger once, as it was named; of a folder by the name of its job. passed_over: hears of each that cannot be read.

    Raises: UnknownJob, StateError.
    """
    found: dict[Path, tuple[str, Journal]] = {}
    for name in names:
        for label, journal in _named(store, name):
            found.setdefault(journal.path.resolve(), (label, journal))
    for label, journal in found.values():
        try:
            yield label, journal.read()
        except StateError as error:
            passed_over(error)


def _named(store: Store, name: str) -> list[tuple[str, Journal]]:
    folder = store.root if name == ALL else Path(name)
    if not folder.is_dir():
        return [(name, store.read(name)[0])]
    inside = folder / "jobs"
    return [(path.stem, Journal(path)) for path in sorted(ledgers_in(inside if inside.is_dir() else folder))]
