"""What root's hooks read by name, where somebody else could write it or make root wait for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.errors import PolicyError
from ftslurm.hooks import scripts as hook_scripts
from ftslurm.hooks.hook_inputs import read_settings
from ftslurm.model.devices import Severity
from tests.attacks.users import NEIGHBOUR, OWNER, run_as

READERS = {
    "settings": lambda path: read_settings(Path(path)),
    "patterns": lambda path: load_pattern_book((path,), only_roots=True),
    "codes": lambda path: fault_lookup((), (path,), only_roots=True)("nvidia", "Xid 79", Severity.UNKNOWN),
}
WAYS = {
    "hers": "open(path, 'w').close()",
    "open-to-all": "",
    "a FIFO": "os.mkfifo(path)",
}


@pytest.fixture
def place() -> Iterator[Path]:
    """As /tmp is, where protected_fifos and protected_regular do not help: root reads."""
    with tempfile.TemporaryDirectory(prefix="ftslurm-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reader", READERS)
def test_what_others_can_write_is_not_obeyed_and_not_waited_for(place: Path, reader: str, way: str) -> None:
    path = place / "site.yaml"
    if WAYS[way]:
        run_as(NEIGHBOUR, f"import os, sys; path = sys.argv[1]\n{WAYS[way]}", str(path))
    else:
        path.touch()
        path.chmod(0o666)
    with pytest.raises(PolicyError, match="not a plain file" if way == "a FIFO" else "by users other than root"):
        READERS[reader](str(path))


# As SlurmUser, whose hook a neighbour of this machine tries to lead elsewhere.
SLURM = OWNER
TRICKS = {
    "a folder of hers": "os.mkdir(place); os.chmod(place, 0o777)",
    "a link": "os.symlink(sys.argv[2], place)",
    "a file": "open(place, 'w').close()",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_slots_are_nobody_s_but_slurmuser_s(place: Path, trick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an open folder none are made; nothing of what she has laid there is entered, and the job is looked at all the same."""
    monkeypatch.setattr(hook_scripts, "SLOT_PLACES", str(place))
    precious = place / "precious"
    precious.mkdir()
    (precious / "later").write_text("hers to keep\n")
    for path in (precious, precious / "later"):
        os.chown(path, SLURM, SLURM)
    (script,) = (one for one in hook_scripts.scripts("/h", str(place / "python"), "/c", "") if one.name == "epilog_slurmctld")
    name = (
        next(word for word in script.text.split('"') if "ftslurm-epilog." in word).rpartition("/")[2].replace("$me", str(SLURM))
    )
    run_as(NEIGHBOUR, f"import os, sys; place = sys.argv[1]\n{TRICKS[trick]}", str(place / name), str(precious))
    (place / "python").write_text("#!/bin/sh\necho looked at $SLURM_JOB_ID\n")
    (place / "python").chmod(0o755)
    (place / "hook").write_text(script.text)
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_RESTART_COUNT": "1"}
    for words in ([], ["later"]):
        done = subprocess.run(
            ["sh", str(place / "hook"), *words], user=SLURM, group=SLURM, extra_groups=[], env=env, capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        assert done.stdout == ("" if words else "looked at 7\n"), done
    assert (precious / "later").read_text() == "hers to keep\n" and sorted(os.listdir(precious)) == ["later"]


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock of util-linux is not installed")
def test_in_a_folder_of_slurmuser_s_own_there_are_slots(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as StateSaveLocation."""
    monkeypatch.setattr(hook_scripts, "SLOT_PLACES", str(place))
    own = place / "state"
    own.mkdir(0o755)
    os.chown(own, SLURM, SLURM)
    (place / "python").write_text("#!/bin/sh\npwd\n")
    (place / "python").chmod(0o755)
    (script,) = (
        one for one in hook_scripts.scripts("/h", str(place / "python"), "/c", "", str(own)) if one.name == "epilog_slurmctld"
    )
    (place / "hook").write_text(script.text)
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_RESTART_COUNT": "1"}
    done = subprocess.run(
        ["sh", str(place / "hook")], user=SLURM, group=SLURM, extra_groups=[], env=env, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    (slots,) = own.iterdir()
    assert done.stdout == "/\n" and slots.stat().st_mode & 0o777 == 0o700 and (slots / "slot.0").exists()
