"""The four fault-tolerance annotations of ModelArts, as they stand in a job's JSON, and one of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.settings.kinds import Layer, count, lead, suggestion, switch, value_of

PREFIX = "fault-tolerance/"
RETRY, UNCONDITIONAL, HANG, POD = (
    f"{PREFIX}{name}" for name in ("job-retry-num", "job-unconditional-retry", "hang-retry", "pod-retry-num")
)
# Ours, also without the others: TIME, or auto.
RESUME = f"{PREFIX}resume-at-limit"
_KINDS: Mapping[str, Callable[[Any], Any]] = {
    RESUME: lead,
    RETRY: count(1, 128),
    UNCONDITIONAL: switch,
    HANG: switch,
    POD: count(1, 128),
}


def looks_like(text: str) -> bool:
    """Does a job's comment carry annotations? Any other comment is nobody's mistake."""
    return PREFIX in text and text.lstrip().startswith("{")


def unread(comment: str) -> str:
    """What to tell people of a job's comment that names annotations and is none, empty for any other: a shell eats the quotes and
    braces of `--comment={"...":"8"}`, and sbatch the double quotes of its directives."""
    if looks_like(comment) or not any(name in comment for name in _KINDS):
        return ""
    return f"""the job's comment names annotations and is no JSON, so it sets nothing; write --comment='{{"{RETRY}": "8"}}'"""


def parse(text: str, place: str) -> Layer:
    """The annotations in `text` (a bare map, or a whole job with metadata.annotations) as a settings layer.

    As in ModelArts, what is not asked for is off. Raises: PolicyError naming `place` and the annotation.
    """
    given = {key: value for key, value in _annotations(text, place).items() if key.startswith(PREFIX)}
    values = {key: _value(key, raw, place) for key, raw in given.items()}
    resume = {"time_limit.resume": given[RESUME]} if RESUME in values else {}
    if values.keys() <= {RESUME}:
        return Layer(resume, dict.fromkeys(resume, place))
    if RETRY not in values:
        raise PolicyError(
            f"{place}: {sorted(values.keys() - {RESUME})[0]} works only together with {RETRY}",
            hint=f'add "{RETRY}": "8" (1 to 128)',
        )
    leaves = {
        **resume,
        "max_restarts": values[RETRY],
        "rungs.in-place-restart.enabled": True,
        "rungs.in-place-restart.crash_restarts": 0,
        "rungs.isolated-requeue.enabled": True,
        "rungs.unconditional-requeue.enabled": values.get(UNCONDITIONAL, False),
        "rungs.hang-restart.enabled": values.get(HANG, False),
        "rungs.node-replacement.enabled": POD in values,
        "rungs.node-replacement.budget": values.get(POD, 0),
    }
    if values.get(UNCONDITIONAL):
        leaves["retry.policy"] = "OnFailure"  # there a job is rebuilt for whatever status but 0 it ended with
    return Layer(leaves, dict.fromkeys(leaves, place))


def _annotations(text: str, place: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        # The likely mistake: sbatch strips double quotes from its directives.
        hint = f"""write '{{"{RETRY}": "8"}}', in #SBATCH --comment with the single quotes"""
        raise PolicyError(f"{place}: not JSON: {error}", hint=hint) from None
    if isinstance(tree, dict) and isinstance(tree.get("metadata"), dict):
        tree = tree["metadata"].get("annotations", {})
    if not isinstance(tree, dict):
        raise PolicyError(f"{place}: annotations are a JSON object", hint=f'write {{"{RETRY}": "8"}}')
    return tree


def _value(key: str, raw: Any, place: str) -> Any:
    if key not in _KINDS:
        raise PolicyError(f"{place}: unknown annotation {key}{suggestion(key, _KINDS)}", hint=f"known: {', '.join(_KINDS)}")
    return value_of(_KINDS[key], raw, f"{place}: {key}")
