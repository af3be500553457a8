"""Reads the catalogues that ship with ftslurm, and a site's own that are laid over them (setting `catalogs`)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from importlib.resources import files
from typing import Any

import yaml

from ftslurm.catalogs.ascend_file import build_catalog
from ftslurm.catalogs.codebook import CodeBook
from ftslurm.catalogs.codes import AscendCatalog
from ftslurm.catalogs.pattern_files import build_book
from ftslurm.catalogs.patterns import PatternBook
from ftslurm.catalogs.site_file import SiteFile, codes_laid_over, patterns_laid_over, read_site
from ftslurm.catalogs.xid_file import build_amd, build_nvidia
from ftslurm.config.text_files import read_text
from ftslurm.errors import PolicyError

MAX_DEPTH = 20

# Not every build of PyYAML has the C loader. It reads 94 KB in 30 ms, the Python one in a quarter of a second.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# What PyYAML lets through for values such as `!!int ""`, `!!bool maybe` and `!!timestamp soon`.
_YAML_SLIPS = (ValueError, IndexError, KeyError, AttributeError, OverflowError, TypeError)
# A number in base 60 (`1:1:1...`) is read in time that grows with the square of its length.
MAX_PLAIN_CHARS = 4096


class _OnceLoader(_Loader):  # type: ignore[misc]
    """Refuses a key that stands twice in one table; YAML readers keep the last and say nothing."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            word = (key.tag, key.value if isinstance(key, yaml.ScalarNode) else id(key))
            if word in seen:
                raise yaml.MarkedYAMLError(problem=f"`{key.value}` is twice in one table", problem_mark=key.start_mark)
            seen.add(word)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return made


def load_pattern_book(paths: tuple[str, ...] = (), only_roots: bool = False) -> PatternBook:
    """Log patterns and exit statuses. paths: of a site's own files, later ones on top. only_roots: as for read_text.

    Raises: PolicyError.
    """
    book = build_book(_shipped("log-patterns.yaml"), _shipped("exit-codes.yaml"), _shipped("device-errors.yaml"))
    for path in paths:
        book = patterns_laid_over(book, _site(path, only_roots), path)
    return book


def load_code_book(paths: tuple[str, ...] = (), only_roots: bool = False) -> CodeBook:
    """Fault codes of all devices. paths: of a site's own files, later ones on top. only_roots: as for read_text.

    Raises: PolicyError.
    """
    book = CodeBook(load_ascend_catalog(), build_nvidia(_shipped("nvidia.yaml")), build_amd(_shipped("amd.yaml")))
    for path in paths:
        book = codes_laid_over(book, _site(path, only_roots), path)
    return book


def load_ascend_catalog() -> AscendCatalog:
    """The shipped Ascend codes. Raises: PolicyError if the file was damaged."""
    return build_catalog(_shipped("ascend.yaml"))


def _shipped(name: str) -> Any:
    return _parsed(files("ftslurm.catalogs").joinpath(name).read_text(encoding="utf-8"), name)


def _site(path: str, only_roots: bool) -> SiteFile:
    """Raises: PolicyError for a file that cannot be read, is too large or wrong."""
    return read_site(_parsed(_bounded(read_text(path, "the catalogue", only_roots), path), path), path)


def _bounded(text: str, place: str) -> str:
    """The same text, once it is known not to be nested deeper than the reader, which recurses, can bear."""
    depth = 0
    for event in _events(text, place):
        kind = type(event).__name__
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        where = f"{place}, line {event.start_mark.line + 1}"
        if depth > MAX_DEPTH:
            raise PolicyError(f"{where}: nested more than {MAX_DEPTH} deep", hint="is it a catalogue?")
        if kind == "ScalarEvent" and event.style is None and len(event.value) > MAX_PLAIN_CHARS:
            raise PolicyError(f"{where}: a value of {len(event.value)} characters without quotes", hint="is it a catalogue?")
        if kind == "AliasEvent":
            # An alias of aliases makes gigabytes of a few lines.
            raise PolicyError(f"{where}: aliases (`*name`) are not supported", hint="write it out")
    return text


def _events(text: str, place: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=_Loader)
    except (yaml.YAMLError, *_YAML_SLIPS) as error:
        raise _not_yaml(error, place) from None


def _parsed(text: str, place: str) -> Any:
    try:
        return yaml.load(text, Loader=_OnceLoader)  # noqa: S506  a safe loader
    except (yaml.YAMLError, *_YAML_SLIPS) as error:
        raise _not_yaml(error, place) from None


def _not_yaml(error: Exception, place: str) -> PolicyError:
    mark = getattr(error, "problem_mark", None)
    where = f"{place}, line {mark.line + 1}" if mark else place
    told = " ".join(str(getattr(error, "problem", None) or error).split())
    return PolicyError(f"{where}: {told}", hint="correct it there")
