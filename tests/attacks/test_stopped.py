"""Users who stop the programs that root runs as them: together they cost root one limit, and nobody else is passed over."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from ftslurm.errors import StateError
from ftslurm.system.owner import Owner
from ftslurm.wrapper import all_ledgers as as_user
from tests.attacks.users import NEIGHBOUR, OWNER

LIMIT_S = 10.0  # a busy machine starts a program in a second or two
HOSTILE = 12


def test_those_that_are_stopped_have_one_limit_and_the_others_their_answer(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = tmp_path_factory.mktemp("homes")
    users = [Owner(OWNER, OWNER, "nobody", homes / f"stops{n}") for n in range(HOSTILE)]
    users += [Owner(NEIGHBOUR, NEIGHBOUR, "daemon", homes / f"well{n}") for n in range(3)]
    for user in users:
        user.home.mkdir()
    program = Path("/var/tmp") / f"ftslurm-test-{os.getpid()}"
    program.write_text("#!/bin/sh\n[ $(id -u) = 1 ] || kill -STOP $$\nprintf 'x\\nwhole\\n'\n")
    program.chmod(0o755)
    monkeypatch.setattr(as_user, "people", lambda first, also=(): users)
    monkeypatch.setattr(sys, "executable", str(program))
    began, well = time.monotonic(), []
    try:
        for owner, said in as_user.asked_of_all(0, ["{home}"], "measures", (), LIMIT_S, 1000):
            assert isinstance(said, StateError) == (owner.name == "nobody"), said
            if said == b"x":
                well.append(time.monotonic() - began)
    finally:
        program.unlink()
    took_s = time.monotonic() - began
    assert len(well) == 3 and max(well) < LIMIT_S and took_s < 3 * LIMIT_S < HOSTILE * LIMIT_S, (well, took_s)
