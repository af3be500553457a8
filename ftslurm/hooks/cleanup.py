"""The site's own clean-up commands, one after the other, as root; all together have a time limit."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ftslurm.errors import CommandMissing
from ftslurm.hooks.hook_inputs import read_settings, tell
from ftslurm.system.commands import run_group


def main() -> None:
    """Argument: the site's file. Status 1 if a command failed; the others have run all the same."""
    settings = read_settings(Path(sys.argv[1]))
    deadline = time.monotonic() + settings.cleanup_limit_s
    failed = False
    for argv in settings.cleanup:
        try:
            done = run_group(argv, max(deadline - time.monotonic(), 0.1), dict(os.environ))
        except CommandMissing as error:
            tell(f"clean-up: {error}")
            failed = True
            continue
        if done.status != 0:
            tell(f"clean-up: {argv[0]} ended with {'the time limit' if done.timed_out else f'status {done.status}'}")
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
