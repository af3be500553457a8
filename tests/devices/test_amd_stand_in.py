"""The stand-in of amdsmi has the surface of the true module: names, arguments, keys of the answers, numbers.

The recorded surface is that of the wheel amdsmi 7.0.2; where the true module is installed, it is held against that too
(its source only, for it cannot be imported without ROCm's library).
"""

from __future__ import annotations

import ast
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ftslurm.devices import amd

TESTS = Path(__file__).parents[1]
RECORDED = json.loads((TESTS / "recorded" / "amdsmi" / "surface-7.0.2.json").read_text(encoding="utf-8"))
STAND_IN = (TESTS / "fakes" / "amdsmi" / "amdsmi" / "__init__.py").read_text(encoding="utf-8")

Surface = dict[str, dict[str, list[str]]]


def surface(source: str) -> Surface:
    """Function, or class.method -> its arguments, and the keys of the dictionaries it builds, alone or through _format_."""
    functions: dict[str, ast.FunctionDef] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            functions.update({f"{node.name}.{part.name}": part for part in node.body if isinstance(part, ast.FunctionDef)})
    return {
        name: {"args": [arg.arg for arg in node.args.args], "keys": sorted(keys(node) | formatted_keys(node, functions))}
        for name, node in functions.items()
    }


def keys(node: ast.AST) -> set[str]:
    dicts = (part for part in ast.walk(node) if isinstance(part, ast.Dict))
    return {key.value for part in dicts for key in part.keys if isinstance(key, ast.Constant)}


def formatted_keys(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> set[str]:
    called = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id.startswith("_format_")}
    return set().union(*(keys(functions[name]) for name in called if name in functions))


def enumeration(source: str, name: str) -> dict[str, str]:
    """Member -> what stands for its number."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                part.targets[0].id: ast.unparse(part.value)  # type: ignore[attr-defined]
                for part in node.body
                if isinstance(part, ast.Assign)
            }
    raise AssertionError(f"no class {name}")


PUBLIC = [name for name in surface(STAND_IN) if name.startswith(("amdsmi_", "AmdSmiEventReader"))]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_function_of_the_stand_in_is_the_true_one(name: str) -> None:
    ours, true = surface(STAND_IN)[name], RECORDED["functions"][name]
    assert ours["args"] == true["args"]
    assert set(ours["keys"]) <= set(true["keys"])


def test_all_that_the_child_calls_is_there() -> None:
    source = Path(amd.__file__).read_text(encoding="utf-8")
    called = {part.attr for part in ast.walk(ast.parse(source)) if isinstance(part, ast.Attribute)}
    assert {name for name in called if name.startswith("amdsmi_")} <= {name for name in RECORDED["functions"]}


def test_events_have_their_true_numbers() -> None:
    ours = enumeration(STAND_IN, "AmdSmiEvtNotificationType")
    assert {name: int(number) for name, number in ours.items()}.items() <= RECORDED["events"].items()
    # RING_HANG is of the releases before 7.0, which dropped it.
    assert set(amd.EVENT_CODES) - {"RING_HANG"} <= set(RECORDED["events"])


def test_statuses_have_their_true_numbers() -> None:
    statuses = RECORDED["statuses"]
    names = ["NOT_SUPPORTED", "NOT_YET_IMPLEMENTED", "NO_PERM", "NO_DATA", "FILE_NOT_FOUND", "SETTING_UNAVAILABLE"]
    assert {statuses[name] for name in names} == amd.SAYS_NOTHING
    assert {statuses["NOT_FOUND"]} == amd.LOST
    assert (statuses["DRIVER_NOT_LOADED"], statuses["NO_DRV"]) == (amd.DRIVER_NOT_LOADED, amd.NO_DRIVER)


def test_the_true_module_still_has_the_recorded_surface() -> None:
    try:
        distribution = metadata.distribution("amdsmi")
    except metadata.PackageNotFoundError:
        pytest.skip("amdsmi is not installed; its surface is recorded")
    folder = Path(str(distribution.locate_file("amdsmi")))
    assert recorded_of(folder, distribution.version)["functions"].items() >= RECORDED["functions"].items()


def recorded_of(folder: Path, version: str) -> dict[str, Any]:
    """The record of an unpacked wheel. python -c "...; print(json.dumps(recorded_of(...)))" makes the file anew."""
    interface = (folder / "amdsmi_interface.py").read_text(encoding="utf-8")
    wrapper = (folder / "amdsmi_wrapper.py").read_text(encoding="utf-8")
    numbers = {
        target.id: node.value.value
        for node in ast.parse(wrapper).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {
        "version": version,
        "functions": {name: value for name, value in surface(interface).items() if name in PUBLIC},
        "events": {
            name: numbers[symbol.removeprefix("amdsmi_wrapper.")]
            for name, symbol in enumeration(interface, "AmdSmiEvtNotificationType").items()
        },
        "statuses": {
            name.removeprefix("AMDSMI_STATUS_"): number for name, number in numbers.items() if name.startswith("AMDSMI_STATUS_")
        },
    }
