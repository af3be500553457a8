"""A site's or a plugin's own catalogue, laid over those that ship: codes graded, patterns and statuses added and replaced."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ftslurm.catalogs import codes, gpu_codes
from ftslurm.catalogs.ascend_file import Code
from ftslurm.catalogs.catalog_models import ExitEntry, PatternEntry, Status, Strict, Text, Version, checked, wrong
from ftslurm.catalogs.codes import CodeBook
from ftslurm.catalogs.pattern_files import check_patterns, laid_over
from ftslurm.catalogs.patterns import PatternBook
from ftslurm.model.devices import Remedy
from ftslurm.model.settings.kinds import suggestion
from ftslurm.model.text import whole

SITE = ("site",)


class AscendChange(Strict):
    handling: str = Field(alias="class")
    name: str = ""
    note: str = ""


class XidChange(Strict):
    remedy: Remedy
    name: str = ""
    program: bool = False
    note: str = ""


class SiteFile(Strict):
    """One file of the setting `catalogs`. devices: kind -> codes, for the kinds of plugins."""

    schema_version: Version = 1
    ascend: Mapping[Code, AscendChange] = {}
    nvidia: Mapping[int | str, XidChange] = {}
    amd: Mapping[Text, XidChange] = {}
    devices: Mapping[Text, Mapping[Text, XidChange]] = {}
    patterns: tuple[PatternEntry, ...] = ()
    remove: tuple[Text, ...] = ()
    exit_codes: Mapping[Status, ExitEntry] = {}


def read_site(data: object, place: str) -> SiteFile:
    """data: the parsed file. place: its path. Raises: PolicyError naming file and entry."""
    file = checked(SiteFile, {} if data is None else data, place)
    check_patterns(file.patterns, place)
    return file


def codes_laid_over(book: CodeBook, site: SiteFile, place: str) -> CodeBook:
    """Raises: PolicyError for a class that does not exist."""
    found = dict(book.catalogs)
    ascend = found["ascend"]
    assert isinstance(ascend, codes.AscendCatalog)
    found["ascend"] = ascend.with_entries({code: _ascend_entry(code, each, ascend, place) for code, each in site.ascend.items()})
    numbered = {_xid(code, place): change for code, change in site.nvidia.items()}
    for kind, changes in {**site.devices, "nvidia": numbered, "amd": site.amd}.items():
        catalog = found.get(kind) or gpu_codes.GpuCatalog(kind, {})
        if not isinstance(catalog, gpu_codes.GpuCatalog):
            raise wrong(place, f"`devices`, `{kind}`:", "its codes have a table of their own, beside `devices`")
        found[kind] = catalog.with_entries({code: _gpu_entry(change) for code, change in changes.items()})
    return CodeBook(found)


def _ascend_entry(code: str, change: AscendChange, catalog: codes.AscendCatalog, place: str) -> codes.CodeEntry:
    if change.handling not in catalog.classes:
        known = ", ".join(catalog.classes)
        raise wrong(place, f"`ascend`, `{code}`:", f"`class` is {change.handling!r}, it should be one of {known}")
    return codes.CodeEntry(change.name, change.handling, sources=SITE, note=change.note)


def _gpu_entry(change: XidChange) -> gpu_codes.GpuEntry:
    return gpu_codes.GpuEntry(change.name, change.remedy, program=change.program, note=change.note, sources=SITE)


def _xid(code: int | str, place: str) -> str:
    """`79` and `Xid 79` are the same; conditions have names."""
    text = "" if isinstance(code, bool) else str(code)
    name = gpu_codes.normalise(f"XID {text}" if whole(text) is not None else text)
    if not name:
        raise wrong(place, "`nvidia`:", "an entry has no code")
    return name


def patterns_laid_over(book: PatternBook, site: SiteFile, place: str) -> PatternBook:
    """Raises: PolicyError for a pattern to remove that is not there."""
    known = {pattern.id for pattern in book.patterns}
    for word in site.remove:
        if word not in known:
            raise wrong(place, "`remove`:", f"there is no pattern `{word}`{suggestion(word, known)}")
    return laid_over(book, site.patterns, site.remove, site.exit_codes)
