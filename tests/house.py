"""The house in figures, by the syntax trees of its modules: how large classes and folders are, and who writes whose attributes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "ftslurm"
# Methods by which the value of an attribute is changed in place.
CHANGES = frozenset(
    "add append appendleft clear difference_update discard extend insert intersection_update pop popitem popleft remove setdefault update".split()
)


@dataclass
class House:
    """classes: name -> lines. attributes: family of classes -> its attributes. writers: (family, attribute) -> modules. A family
    is a class with those that it inherits from: one object. folders: name -> modules."""

    classes: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, set[str]] = field(default_factory=dict)
    writers: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)


def survey(source: Path = SOURCE) -> House:
    """Of every module below `source`, but for generated ones."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(source.rglob("*.py")) if not path.name.startswith("_shim")}
    house = House()
    for path in trees:
        house.folders[_place(path.parent)] = house.folders.get(_place(path.parent), 0) + (path.name != "__init__.py")
    found = {(path, node.name): node for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    families = _families(found)
    values = _values(found)
    house.attributes = defaultdict(set)
    writers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (path, name), node in found.items():
        house.classes[f"{_place(path)}:{name}"] = (node.end_lineno or 0) - node.lineno + 1
        family = families[path, name]
        house.attributes[family] |= _own(node, name in values)
        for attribute in _written(node, of_self=True):
            house.attributes[family].add(attribute)
            writers[family, attribute].add(_place(path))
    owners: dict[str, list[str]] = defaultdict(list)
    for family, attributes in house.attributes.items():
        for attribute in attributes:
            owners[attribute].append(family)
    for path, tree in trees.items():
        for attribute in _written(tree, of_self=False):
            for family in owners.get(attribute, ()):
                if _in_reach(path, family):
                    writers[family, attribute].add(_place(path))
    house.writers = dict(writers)
    return house


def _place(path: Path) -> str:
    return path.relative_to(SOURCE.parent).as_posix()


def _in_reach(path: Path, family: str) -> bool:
    """Names mean something in their package alone: an attribute `found` of another one is another's."""
    return _place(path).split("/")[1:2] == family.split(":")[0].split("/")[1:2]


def _families(found: dict[tuple[Path, str], ast.ClassDef]) -> dict[tuple[Path, str], str]:
    """Each class with those that it stands on, by the name of the lowest one."""
    by_name: dict[str, list[tuple[Path, str]]] = defaultdict(list)
    for path, name in found:
        by_name[name].append((path, name))

    def lowest(key: tuple[Path, str]) -> tuple[Path, str]:
        for base in found[key].bases:
            known = by_name.get(ast.unparse(base).split("[")[0].split(".")[-1], [])
            near = [other for other in known if other[1] != "Value" and other[0].parent == key[0].parent and other != key]
            if near:
                return lowest(near[0])
        return key

    return {key: f"{_place(lowest(key)[0])}:{lowest(key)[1]}" for key in found}


def _values(found: dict[tuple[Path, str], ast.ClassDef]) -> set[str]:
    """Names of the classes that stand on `Value`."""
    names = {"Value"}
    while more := {node.name for node in found.values() if names & set(map(ast.unparse, node.bases))} - names:
        names |= more
    return names


def _own(node: ast.ClassDef, value: bool) -> set[str]:
    """Fields of a data class; not those of an enum, nor constants."""
    dataclasses = value or any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    fields = (line.target for line in node.body if isinstance(line, ast.AnnAssign)) if dataclasses else ()
    return {target.id for target in fields if isinstance(target, ast.Name)}


def _written(tree: ast.AST, of_self: bool) -> Iterator[str]:
    """Attributes that are assigned, deleted or changed in place: of `self`, or of anything else."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            targets = [node.func.value]
        for target in targets:
            yield from _attribute(target, of_self, isinstance(node, ast.Call))


def _attribute(target: ast.expr, of_self: bool, call: bool) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _attribute(each, of_self, call)
        return
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    if isinstance(target, ast.Attribute):
        own = isinstance(target.value, ast.Name) and target.value.id == "self"
        if own is of_self:
            yield target.attr
