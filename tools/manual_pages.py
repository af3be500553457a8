"""Which manual pages `make man` builds: the page of the site, the name, what it is for, the section."""

from __future__ import annotations

PAGES = (
    ("reference/ftrun", "ftrun", "run a parallel job as srun does, and keep it alive", 1),
    ("reference/ftslurm", "ftslurm", "show and steer jobs that run under ftrun", 1),
    ("reference/ft_launcher", "ft_launcher", "the command line of ft_launcher and torchrun, run by ftrun", 1),
    ("reference/settings", "ftslurm-settings", "what ftrun can be told, and where", 5),
    ("reference/hooks", "ftslurm-hooks", "settings of the hooks that Slurm runs", 5),
    ("reference/environment", "ftslurm-environment", "variables that ftslurm reads and sets", 7),
    ("reference/exit-statuses", "ftslurm-statuses", "exit statuses of ftrun and ftslurm", 7),
)


def for_sphinx(author: str) -> list[tuple[str, str, str, str, int]]:
    """As Sphinx's man_pages takes them."""
    return [(page, name, what, author, section) for page, name, what, section in PAGES]
