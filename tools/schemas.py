"""JSON Schemas of what the commands print for programs, made from the types that they print.

    tools/schemas.py FOLDER      writes FOLDER/VERB.schema.json for each verb

A verb that prints several forms (`ftslurm status`: a list, or one job) has one schema, which takes each of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from ftslurm.model.folds.control import Request
from ftslurm.model.folds.node_memory import Remembered
from ftslurm.model.folds.summary import JobSummary
from ftslurm.report import view
from ftslurm.report.account.job import Failure, JobAccount
from ftslurm.report.account.jobs import JobsAccount
from ftslurm.report.account.parts import Stretch
from ftslurm.report.analysis import AnalysisTold
from ftslurm.report.explain.code import Explained
from ftslurm.report.explain.decisions import Explanations
from ftslurm.report.explain.terms import LadderTold, Term
from ftslurm.report.page.plain import LONG, VERSION, Sums
from ftslurm.report.site import FindingsTold, NodeReport
from ftslurm.simulation.show import ReplaysTold, SimulationTold

Type = Any


def _merged(name: str, doc: str, *parts: Mapping[str, Type]) -> Type:
    made: Type = TypedDict(name, {key: kind for part in parts for key, kind in part.items()})  # type: ignore[operator]
    made.__doc__ = doc
    return made


def _hints(of: type, without: Sequence[str] = ()) -> dict[str, Type]:
    """As its module names them; of a data class the fields alone."""
    known = get_type_hints(of)
    names = [one.name for one in fields(of)] if hasattr(of, "__dataclass_fields__") else list(known)
    return {name: known[name] for name in names if name not in without}


_job = _hints(JobSummary)
Job = _merged("Job", "A job in one line; times in Unix seconds.", _job)
JobOfAll = _merged("JobOfAll", "The same, with its user and the seconds that it lost.", {"user": str, "lost_s": float}, _job)
_alone = ("summary",)
Status = _merged("Status", view.Status.__doc__ or "", _job, _hints(view.Status, _alone))
History = _merged("History", view.HistoryTold.__doc__ or "", {"job": Status}, _hints(view.HistoryTold, ("job",)))
Decisions = _merged("Decisions", Explanations.__doc__ or "", _job, _hints(Explanations, _alone))
_kind = {"version": Literal[VERSION]}
_failure = _merged("Failure", Failure.__doc__ or "", _hints(Failure), {"lost_s": float, "failed": bool, "remedy": str})
_account = _job | _hints(JobAccount, tuple(LONG))
_long = {name: kind for name, kind in _hints(JobAccount).items() if name in LONG - {"summary", "spent", "failures"}}
ShortReport = _merged("ShortReport", "A job among many.", _account, _hints(Sums))
JobReport = _merged(
    "JobReport", "Times in Unix seconds, durations in seconds.", _kind, {"kind": Literal["job"]}, _account, _hints(Sums), _long,
    {"stretches": tuple[Stretch, ...], "failures": list[_failure]},
)  # fmt: skip
JobsReport = _merged(
    "JobsReport", "parts: seconds times GPUs or nodes (unit).", _kind, {"kind": Literal["jobs"]},
    _hints(JobsAccount, ("jobs",)), {"jobs": list[ShortReport]},
)  # fmt: skip

# verb -> how it is called, and what it prints then
SHAPES: Mapping[str, Mapping[str, Type]] = {
    "status": {
        "ftslurm status --json": list[Job],
        "ftslurm status JOB --json": Status,
        "ftslurm status --all-users --json": list[JobOfAll],
    },
    "history": {
        "ftslurm history JOB --json": History,
        "ftslurm history --json": list[History],
    },
    "explain": {
        "ftslurm explain JOB --json": Decisions,
        "ftslurm explain CODE --json": tuple[Explained, ...],
        "ftslurm explain WORD --json": Term,
        "ftslurm explain --json": LadderTold,
    },
    "analyze": {"ftslurm analyze LOG --json": AnalysisTold},
    "report": {
        "ftslurm report JOB --format json": JobReport,
        "ftslurm report --format json": JobsReport,
    },
    "control": {"ftslurm control JOB list --json": list[Request]},
    "simulate": {
        "ftslurm simulate TRACE --json": SimulationTold,
        "ftslurm simulate --from-job JOB --json": ReplaysTold,
    },
    "doctor": {"ftslurm doctor --json": FindingsTold},
    "nodes": {
        "ftslurm nodes --json": list[Remembered],
        "ftslurm nodes --all-users --json": list[NodeReport],
    },
}  # fmt: skip


def schema(verb: str) -> dict[str, Any]:
    forms = SHAPES[verb]
    keys, known = TypeAdapter.json_schemas([(call, "serialization", TypeAdapter(kind)) for call, kind in forms.items()])
    made = [{**keys[call, "serialization"], "title": call} for call in forms]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:ftslurm:json:{VERSION}:{verb}",
        "title": f"ftslurm {verb}",
        **(made[0] | {"title": f"ftslurm {verb}"} if len(made) == 1 else {"anyOf": made}),
        **known,
    }


def closed(part: Any) -> Any:
    """A schema that refuses fields which it does not name: for tests. Readers ignore them."""
    if isinstance(part, dict):
        rest = {"additionalProperties": False} if "properties" in part and "additionalProperties" not in part else {}
        return {key: closed(value) for key, value in part.items()} | rest
    return [closed(each) for each in part] if isinstance(part, list) else part


def tables() -> Iterator[tuple[str, str, Sequence[tuple[str, str]]]]:
    """Each call, what it gives, and its fields with their types in words."""
    for verb, forms in SHAPES.items():
        whole = schema(verb)
        for call, form in zip(forms, whole.get("anyOf", [whole]), strict=True):
            of = form.get("items", form) if form.get("type") == "array" else form
            name = of.get("$ref", "").rpartition("/")[2]
            found = whole["$defs"][name] if name else of
            some = "a list; each: " if form.get("type") == "array" else ""
            told = some + " ".join(found.get("description", "").split())
            yield call, told, [(key, _words(kind)) for key, kind in found["properties"].items()]


def _words(kind: Mapping[str, Any]) -> str:
    if "$ref" in kind:
        return kind["$ref"].rpartition("/")[2]
    if "anyOf" in kind:
        return " or ".join(map(_words, kind["anyOf"]))
    if "enum" in kind or "const" in kind:
        return ", ".join(map(str, kind.get("enum", [kind.get("const")])))
    if kind.get("type") == "array":
        return f"list of {_words(kind['items'])}" if "items" in kind else "list"
    if kind.get("type") == "object":
        more = kind.get("additionalProperties")
        return f"name to {_words(more)}" if isinstance(more, dict) else "object"
    return str(kind.get("type", "any"))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for verb in SHAPES:
        (folder / f"{verb}.schema.json").write_text(json.dumps(schema(verb), indent=1) + "\n")
