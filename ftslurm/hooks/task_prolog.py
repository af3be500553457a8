"""Slurm's TaskProlog: the counters for steps of plain srun and for the batch script, as lines that Slurm reads on stdout.

Runs as the user for every task, after the installed script has seen that the job has a ledger. Source of the form:
slurm.conf(5), TaskProlog.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ftslurm.errors import FtslurmError
from ftslurm.ledger.store import Store, state_folder
from ftslurm.model.text import visible
from ftslurm.wrapper.batch_env import variables


def lines(env: Mapping[str, str]) -> str:
    """Slurm takes all after the equals sign as it stands, so there are no quotes. Raises: FtslurmError."""
    values = variables(Store(state_folder(env)), env)
    return "".join(f"export {name}={value}\n" for name, value in values.items() if value.isprintable())


def main() -> None:
    try:
        sys.stdout.write(lines(os.environ))
    except FtslurmError as error:
        print(f"ftslurm: {visible(error)}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
