"""Reads the catalogues that ship with ftslurm, and those of plugins and of the site (`catalogs`) that are laid over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from ftslurm.catalogs.codes import CodeBook
from ftslurm.catalogs.codes import read_catalog as read_codes
from ftslurm.catalogs.pattern_files import SiteFile, build_book, codes_laid_over, patterns_laid_over, read_site
from ftslurm.catalogs.patterns import PatternBook
from ftslurm.config.settings_files import read_shipped, read_text, read_yaml
from ftslurm.errors import PolicyError
from ftslurm.model.plain import Bounds, from_plain
from ftslurm.model.rungs import Glossary
from ftslurm.model.site import SiteChecks
from ftslurm.model.verdict import HintWords
from ftslurm.system.plugins import CATALOGS, DEVICES, OURS, load

Known = TypeVar("Known", CodeBook, PatternBook)


def load_pattern_book(paths: tuple[str, ...] = (), only_roots: bool = False) -> PatternBook:
    """Log patterns and exit statuses. paths: of a site's own files, later ones on top. only_roots: as for read_text.

    Raises: PolicyError.
    """
    names = ("log-patterns.yaml", "exit-codes.yaml", "device-errors.yaml", "words.yaml")
    book = build_book(*map(read_shipped, names))
    return _laid_over(book, patterns_laid_over, paths, only_roots)


def load_code_book(paths: tuple[str, ...] = (), only_roots: bool = False, user_induced: tuple[str, ...] = ()) -> CodeBook:
    """Fault codes of all devices. paths: of a site's own files, later ones on top. only_roots: as for read_text. user_induced:
    codes that are the program's doing, whatever their catalogue says.

    Raises: PolicyError.
    """
    book = CodeBook({kind: read_codes(read_shipped(f"{kind}.yaml")) for kind in OURS[DEVICES]}, user_induced)
    return _laid_over(book, codes_laid_over, paths, only_roots)


def load_site_checks() -> SiteChecks:
    """What `ftslurm doctor` says."""
    return from_plain(SiteChecks, read_shipped("site-checks.yaml"), Bounds(1000))


def load_glossary() -> Glossary:
    return from_plain(Glossary, read_shipped("glossary.yaml"), Bounds(1000))


def load_hang_hints() -> Mapping[str, HintWords]:
    return {name: from_plain(HintWords, words, Bounds(1000)) for name, words in read_shipped("hang-hints.yaml").items()}


def _laid_over(book: Known, lay: Callable[[Known, SiteFile, str], Known], paths: tuple[str, ...], only_roots: bool) -> Known:
    """The files of plugins first. One that is wrong is left out. Raises: PolicyError for a site's."""
    for plugin, path in load(CATALOGS):
        try:
            book = lay(book, read_catalog(path, only_roots), str(path))
        except PolicyError as error:
            plugin.leave_out(error)
    for path in paths:
        book = lay(book, read_catalog(path, only_roots), path)
    return book


def read_catalog(path: str | Path, only_roots: bool = False) -> SiteFile:
    """Raises: PolicyError for a file that cannot be read, is too large or wrong."""
    return read_site(read_yaml(read_text(path, "the catalogue", only_roots), str(path))[0], str(path))
