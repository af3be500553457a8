"""Every parser of ftslurm with the inputs it is tried on: the table that test_parsers.py and run.py both walk."""

from __future__ import annotations

from tests.fuzz.catalogs import CATALOGS
from tests.fuzz.ledgers import LEDGER
from tests.fuzz.messages import WIRE
from tests.fuzz.people import PEOPLE, SRUN
from tests.fuzz.programs import DEVICES, SLURM

PARSERS = [*DEVICES, *SLURM, *WIRE, *LEDGER, *PEOPLE, *SRUN, *CATALOGS]
assert len({parser.name for parser in PARSERS}) == len(PARSERS)
