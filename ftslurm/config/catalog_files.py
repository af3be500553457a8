"""Reads the catalogues that ship with ftslurm, and a site's own that are laid over them (setting `catalogs`)."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

from ftslurm.catalogs.ascend_file import build_catalog
from ftslurm.catalogs.codes import AscendCatalog, CodeBook
from ftslurm.catalogs.gpu_files import build_amd, build_nvidia
from ftslurm.catalogs.pattern_files import build_book
from ftslurm.catalogs.patterns import PatternBook
from ftslurm.catalogs.site_file import SiteFile, codes_laid_over, patterns_laid_over, read_site
from ftslurm.config.text_files import read_text, read_yaml


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
    # Not every build of PyYAML has the C loader. It reads 94 KB in 30 ms, the Python one in a quarter of a second.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files("ftslurm.catalogs").joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=loader)  # noqa: S506 -- a safe loader


def _site(path: str, only_roots: bool) -> SiteFile:
    """Raises: PolicyError for a file that cannot be read, is too large or wrong."""
    return read_site(read_yaml(read_text(path, "the catalogue", only_roots), path)[0], path)
