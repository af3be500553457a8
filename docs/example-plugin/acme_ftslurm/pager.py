"""Notices on ACME's pagers: `acme://ROOM` in notify.yaml. A pager here is a file in $ACME_PAGERS."""

from __future__ import annotations

import os
from pathlib import Path

from ftslurm.notify.outbox import Notice, shown


def send(url: str, notice: Notice) -> str:
    """Why the notice did not go, empty if it did. It runs in a process beside ftrun, which tries again; it may raise."""
    folder = os.environ.get("ACME_PAGERS", "")
    if not folder:
        return "ACME_PAGERS is not set"
    title, text = shown(notice)
    with Path(folder, url.partition("://")[2]).open("a") as pager:
        pager.write(f"[{notice.kind}] {title}\n{text}\n")
    return ""
