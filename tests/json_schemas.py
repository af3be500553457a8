"""What a command has printed as JSON is what its schema says, and nothing beside: tools/schemas.py."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
import schemas


@cache
def _validator(verb: str, call: str) -> Any:
    whole = schemas.schema(verb)
    if call:
        form = next(each for each in whole.get("anyOf", [{**whole, "title": call}]) if each["title"] == call)
        whole = {**form, "$defs": whole.get("$defs", {})}
    return jsonschema.Draft202012Validator(schemas.closed(whole))


def check(verb: str, told: Any, call: str = "") -> None:
    """call: the form that it has to be; empty: any of that verb's. Raises: AssertionError."""
    if error := jsonschema.exceptions.best_match(_validator(verb, call).iter_errors(told)):
        raise AssertionError(f"{call or verb}: {error.json_path}: {error.message[:400]}")
