"""The form of the catalogue files, checked with pydantic: what is wrong with a file becomes one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ftslurm.errors import PolicyError
from ftslurm.model.devices import Remedy
from ftslurm.model.settings.kinds import suggestion
from ftslurm.model.verdict import Blame, ErrorClass, Retriable, Role


def yes_no(value: object) -> object:
    # To a YAML reader an unquoted yes or no is true or false.
    return ("no", "yes")[value] if isinstance(value, bool) else value


class Strict(BaseModel):
    """What is not known is refused, for it is mostly a slip of the pen."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_max_length=4000)


Text = Annotated[str, Field(min_length=1)]
Sources = Annotated[tuple[Text, ...], Field(min_length=1)]
Version = Literal[1]
Numbered = tuple[Annotated[str, Field(pattern=r"^[A-Z]{1,32}$")], ...]


class Judged(Strict):
    """What follows from a line or a status."""

    error_class: ErrorClass = Field(alias="class")
    retriable: Annotated[Retriable, BeforeValidator(yes_no)]
    blame: Annotated[Blame, BeforeValidator(yes_no)] = Field(default=Blame.NO, alias="isolate")
    remedy: Remedy | None = None
    sources: Sources = Field(default=("site",), alias="source")
    note: str = ""


class PatternEntry(Judged):
    """One of `patterns`, as it stands in the file."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    name: Text
    role: Role = Role.ROOT
    where: Literal["log", "kernel", "sched", "tool", "any"] = "log"
    confirm: Annotated[int, Field(ge=0, le=100, alias="budget")] = 0
    defers: bool = False
    needs: str = ""
    pattern: Text
    sample: Text
    codes: str = ""
    kernel: str = ""
    hidden_by: tuple[Text, ...] = ()
    waited: tuple[Text, ...] = ()


class ExitEntry(Judged):
    """One of `codes` or `exit_codes`."""

    meaning: Text
    # Whose own status it is: words of which that tool's output holds one. Empty: any program's.
    tools: tuple[Text, ...] = ()


class ExitRuleEntry(ExitEntry):
    low: Annotated[int, Field(ge=0, le=255)] = Field(alias="from")
    high: Annotated[int, Field(ge=0, le=255)] = Field(alias="to")


Status = Annotated[int, Field(ge=0, le=255)]


def usual_remedy(entry: Judged) -> Remedy:
    """What follows from the rest of an entry, where it names no remedy of its own."""
    if isinstance(entry, PatternEntry) and entry.role is not Role.ROOT:
        return Remedy.LOG
    if entry.blame is Blame.YES:
        return Remedy.REPLACE
    if entry.retriable is Retriable.NO:
        return Remedy.FAIL
    return Remedy.SUSPECT if entry.blame is Blame.SUSPECT else Remedy.RESTART


# --- mistakes in words

Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], data: object, place: str) -> Model:
    """`data`, as the YAML reader gives it, in the form of `model`. Raises: PolicyError for the first mistake."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, what = _where(first["loc"], data), _what(first, model)
        raise wrong(place, where, what) from None


def wrong(place: str, where: str, what: str) -> PolicyError:
    """place: the file. where: the entry."""
    return PolicyError(f"{place}: {where} {what}".replace("  ", " "), hint="correct it there")


def _where(loc: tuple[int | str, ...], data: object) -> str:
    """The way to the mistake, ``patterns`, `cuda-oom`:`; its last step is left to the sentence."""
    steps: list[str] = []
    for step in loc[:-2] if loc and loc[-1] == "[key]" else loc[:-1]:
        inner: Any = None
        if isinstance(data, Mapping):
            inner = data.get(step)
        elif isinstance(data, (list, tuple)) and isinstance(step, int) and step < len(data):
            inner = data[step]
        steps.append(f"`{step}`" if isinstance(data, Mapping) else _label(step, inner))
        data = inner
    return ", ".join(steps) + ":" if steps else ""


def _label(step: int | str, inner: object) -> str:
    """An entry of a list is known by its id, where it has one."""
    named = inner.get("id", inner.get("trigger", inner.get("xid"))) if isinstance(inner, Mapping) else None
    if named is not None:
        return f"`{_printable(named)}`"
    return f"entry {step + 1}" if isinstance(step, int) else f"`{step}`"


def _printable(given: object) -> object:
    """A number of thousands of digits cannot be printed."""
    return "a very long number" if isinstance(given, int) and abs(given) >= 10**100 else given


def _what(error: Any, model: type[BaseModel]) -> str:
    kind, last, given = error["type"], error["loc"][-1] if error["loc"] else "the file", _printable(error["input"])
    name = "the file" if not error["loc"] else f"`{last}`"
    if last == "[key]":
        name = f"`{given}`"
    if kind == "value_error":
        return f"{name} {error['ctx']['error']}"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        return f"there is no {name} here{suggestion(str(last), _fields(model) - {last})}"
    if kind in ("enum", "literal_error"):
        return f"{name} is {given!r}, it should be {error['ctx']['expected']}"
    if kind == "string_type":
        return f"{name} should be text, it is {given!r}: put it in quotes"
    if kind in ("tuple_type", "list_type"):
        return f"{name} should be a list, it is {given!r}"[:200]
    if kind in ("mapping_type", "dict_type", "model_type", "model_attributes_type"):
        return f"{name} should be a table, it is {given!r}"[:200]
    if kind == "string_too_short" or (kind == "too_short" and not given):
        return f"{name} is empty"
    return f"{name} is {given!r}"[:200] + f": {error['msg'][0].lower()}{error['msg'][1:]}"


def _fields(model: type[BaseModel]) -> set[str]:
    """Of the model and of its parts."""
    schema = model.model_json_schema()
    return {name for part in (schema, *schema.get("$defs", {}).values()) for name in part.get("properties", ())}
