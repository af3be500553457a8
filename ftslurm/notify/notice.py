"""What people are told of a job, and how it is written down while it waits to be sent. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ftslurm.model.text import counted, cut, visible
from ftslurm.model.values import dataclass

# Kind of event -> what it stands for. The settings notify.KIND name where each goes.
KINDS = {
    "failure": "the job has failed",
    "requeue": "the job is requeued",
    "replacement": "a node is replaced or excluded",
    "restart": "the ranks are restarted on the same nodes",
    "hang": "the job hangs, and ftrun does nothing about it",
    "message": "the program has a message",
    "end": "the job has ended without a failure",
    "test": "a test",
}
MAX_TITLE, MAX_TEXT = 200, 8000
# Of a summary: so many titles, and the whole text of the last failure.
MAX_TITLES = 20


@dataclass(frozen=True, slots=True)
class Notice:
    """at: Unix seconds. id: the same notice has the same one, whoever makes it anew. title: one line; text: more, with lines."""

    id: str
    at: float
    job: str
    kind: str
    title: str
    text: str = ""


def to_json(notice: Notice) -> str:
    return json.dumps({name: getattr(notice, name) for name in Notice.__match_args__})


def from_json(data: bytes) -> Notice | None:
    """None for what is none."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or type(body.get("at")) not in (int, float) or body.get("kind") not in KINDS:
        return None
    texts = {name: body.get(name, "") for name in ("id", "job", "kind", "title", "text")}
    if any(type(each) is not str for each in texts.values()):
        return None
    return Notice(at=float(body["at"]), **texts)


def shown(notice: Notice) -> tuple[str, str]:
    """Title and text, as they may leave."""
    return cut(visible(notice.title), MAX_TITLE), cut(visible(notice.text, lines=True), MAX_TEXT)


def summary(notices: Sequence[Notice]) -> Notice:
    """One for several, the latest last: how many of which kind, their titles, and the last failure in full."""
    if len(notices) == 1:
        return notices[0]
    kinds = [notice.kind for notice in notices]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    jobs = list(dict.fromkeys(notice.job for notice in notices))
    whose = f"job {jobs[0]}" if len(jobs) == 1 else counted(len(jobs), "job")
    listed = [cut(visible(notice.title), MAX_TITLE) for notice in notices[-MAX_TITLES:]]
    more = [f"... and {len(notices) - len(listed)} before these"] if len(notices) > len(listed) else []
    worst = next((notice for notice in reversed(notices) if notice.kind == "failure"), notices[-1])
    last = ["", worst.text] if worst.text else []
    return Notice(
        worst.id, notices[-1].at, worst.job, worst.kind, f"{whose}: {counted(len(notices), 'event')} ({counts})",
        "\n".join([*more, *listed, *last]),
    )  # fmt: skip
