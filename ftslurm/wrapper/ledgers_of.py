"""The ledgers of all users, for root. Each user's are read by a program that runs as that user: with no more rights than the user
has, and also where the file system trusts no root. What it prints is taken for what it is: words of that user's.

Arguments of the program: since when (Unix seconds), and the state folders. It prints, of each ledger that counts, one line (its
size in bytes, its job's state, is it over) and the ledger itself.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError
from ftslurm.ledger.hostile import MAX_BYTES
from ftslurm.ledger.records import from_line
from ftslurm.ledger.store import VARIABLE
from ftslurm.model.record import Record
from ftslurm.model.summary import OVER, summarise
from ftslurm.model.text import visible
from ftslurm.report.account.job import JobAccount, account, since
from ftslurm.system.files import read_private
from ftslurm.system.owner import PATH, Owner, read_as
from ftslurm.wrapper.reports import ledgers_since

# Of one user; what comes after is left out, and that is said.
TIMEOUT_S, MOST_BYTES, PATIENCE_S = 120.0, 256 << 20, 60.0
_HEAD = re.compile(rb"(\d{1,9}) ([a-z]{1,20}) ([01])\n")
# Of Slurm's own; the rest of root's environment is none of a user's business.
_SLURM = ("SLURM_CONF", "SLURM_CLUSTER_NAME")


def owners(first_user_id: int) -> list[Owner]:
    """Users with a home folder: all that the password database lists, and those whose home lies beside one of these, since a
    directory service may list nobody."""
    found = {entry.pw_uid: entry for entry in pwd.getpwall() if entry.pw_uid >= first_user_id}
    for folder in sorted({Path(entry.pw_dir).parent for entry in found.values()} - {Path("/")}):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError, KeyError):
                    owner = entry.stat(follow_symlinks=False).st_uid
                    if owner >= first_user_id and owner not in found:
                        found[owner] = pwd.getpwuid(owner)
    return [Owner(each.pw_uid, each.pw_gid, each.pw_name, Path(each.pw_dir)) for _, each in sorted(found.items())]


def places_of(owner: Owner, patterns: Iterable[str]) -> list[str]:
    """The state folders of a user that may be there: one that root cannot see may be, too."""
    filled = [pattern.replace("{home}", str(owner.home)).replace("{user}", owner.name) for pattern in patterns]
    return [place for place in filled if _may_be(place)]


def _may_be(place: str) -> bool:
    try:
        os.lstat(place)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # root_squash
    return True


def jobs_of_all(
    began: float, env: Mapping[str, str], now: float, patterns: Sequence[str], first_user_id: int,
    passed_over: Callable[[StateError], None],
) -> list[JobAccount]:  # fmt: skip
    """Of every job of any user that was not over at that moment (Unix seconds), each from then on."""
    found: list[JobAccount] = []
    for owner in owners(first_user_id):
        if places := places_of(owner, patterns):
            try:
                printed = _printed(owner, began, places, env)
            except FtslurmError as error:
                passed_over(StateError(f"the ledgers of {owner.name}: {error}"))
                continue
            found += _accounts(owner, printed, began, now, passed_over)
    return found


def _printed(owner: Owner, began: float, places: Sequence[str], env: Mapping[str, str]) -> bytes:
    argv = [sys.executable, "-I", "-m", "ftslurm.wrapper.ledgers_of", f"{began:.3f}", *places]
    its_env = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": str(owner.home), **{key: env[key] for key in _SLURM if key in env}}
    return read_as(owner, argv, TIMEOUT_S, its_env, MOST_BYTES)


def _accounts(
    owner: Owner, printed: bytes, began: float, now: float, passed_over: Callable[[StateError], None]
) -> Iterator[JobAccount]:
    until, count = time.monotonic() + PATIENCE_S, 0
    for count, (ledger, state, over) in enumerate(ledgers(printed), 1):
        if time.monotonic() > until:
            passed_over(StateError(f"the ledgers of {owner.name} from the {count}th on: they take too long"))
            return
        records, damaged = _records(ledger)
        known = summarise(records)
        if known is not None:
            told = known._replace(state=state, over=over) if state in _TOLD else known
            yield since(account(records, told, now, damaged, owner.name), began)
    if not count and printed:
        passed_over(StateError(f"the ledgers of {owner.name}: {printed[-200:].decode(errors='replace').strip()}"))


# What Slurm may have said besides.
_TOLD = OVER | {"pending", "held", "suspended", "starting"}


def ledgers(printed: bytes) -> Iterator[tuple[bytes, str, bool]]:
    """(ledger, state, over) of what the program has printed, up to what is none."""
    at = 0
    while found := _HEAD.match(printed, at):
        size, at = int(found[1]), found.end()
        ledger = printed[at : at + size]
        if len(ledger) < size:
            return
        yield ledger, found[2].decode(), found[3] == b"1"
        at += size


def _records(ledger: bytes) -> tuple[list[Record], int]:
    lines = [from_line(line) for line in ledger.splitlines() if line.strip()]
    good = [record for record in lines if record is not None]
    return good, len(lines) - len(good)


# --- the program, as the user


def print_ledgers(began: float, places: Sequence[str]) -> None:
    for place in places:
        if Path(place, "jobs").is_dir():
            _print_one(began, Path(place))


def _print_one(began: float, root: Path) -> None:
    for path, known in ledgers_since(root, began, {**os.environ, VARIABLE: str(root)}, lambda error: None).items():
        if ledger := _ledger(path):
            sys.stdout.buffer.write(b"%d %s %d\n" % (len(ledger), known.state.encode(), known.over) + ledger)


def _ledger(path: Path) -> bytes:
    """The end of one that is huge."""
    try:
        return read_private(path, MAX_BYTES)
    except OSError:
        return b""


def main() -> None:
    os.umask(0o077)
    try:
        print_ledgers(float(sys.argv[1]), sys.argv[2:])
    except (FtslurmError, OSError, ValueError, IndexError) as error:
        print(visible(f"cannot be read: {error}"))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
