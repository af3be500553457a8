"""Where the installed commands begin, before anything but the standard library is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def ftrun() -> None:
    own_packages_first()
    from ftslurm.cli.ftrun import main

    main()


def ftslurm() -> None:
    own_packages_first()
    from ftslurm.cli.ftslurm import main

    main()


def ft_launcher() -> None:
    own_packages_first()
    from ftslurm.cli.ft_launcher.command import main

    main()


def own_packages_first() -> None:
    """PYTHONPATH is for the user's program; a site's modules set it to packages of another Python, which do not load in ours."""
    sys.path[:] = behind_the_others(sys.path, os.environ.get("PYTHONPATH", ""))


def behind_the_others(path: Sequence[str], python_path: str) -> list[str]:
    """`path` with the folders that PYTHONPATH names last. One that it does not hold is not added."""
    named = {os.path.abspath(folder) for folder in python_path.split(os.pathsep)} if python_path else set()  # noqa: PTH100
    return sorted(path, key=lambda folder: folder in named)
