"""The edge of every script that Slurm runs: whatever goes wrong in it is its own trouble and never a node's or a job's."""

from __future__ import annotations

import os
import sys
import syslog
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from ftslurm.hooks.hook_inputs import read_settings
from ftslurm.hooks.state_file import Memory
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.text import visible
from ftslurm.policies.node.health import one_line

# To the installed script around us; every other status means to it that all is well (hooks/install/scripts.py).
BAD_NODE_STATUS = 10

Work = Callable[[HookSettings, Mapping[str, str]], tuple[bool, str]]


def run_hook(name: str, node: str, work: Work) -> None:
    """Ends the process. Its arguments: the site's file, the folder of the scripts.

    work: gives whether the node is fit for the job, and one sentence.
    """
    fit, sentence, settings = True, "", HookSettings()
    try:
        settings = read_settings(Path(sys.argv[1]))
        fit, sentence = work(settings, dict(os.environ))
    except Exception as error:  # it fails open
        print(visible(traceback.format_exc(), lines=True), file=sys.stderr)
        sentence = f"nothing was done: {error}"
    tell(f"{name}: {sentence}")
    if node and os.geteuid() == 0:
        Memory(settings.state, node).said(name, sentence)
    sys.exit(0 if fit else BAD_NODE_STATUS)


def tell(sentence: str) -> None:
    """To the system's log, and to whoever looks at what slurmd keeps."""
    sentence = one_line(sentence)
    syslog.openlog("ftslurm", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(sentence)
    print(f"ftslurm: {sentence}", file=sys.stderr)
