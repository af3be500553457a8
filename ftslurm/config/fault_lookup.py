"""What a device's code means, from catalogues that are read at the first fault, which most jobs never see."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from ftslurm.model.devices import CodeMeaning, Severity

if TYPE_CHECKING:
    from ftslurm.catalogs.codes import CodeBook


def fault_lookup(
    user_induced: tuple[str, ...], catalogs: tuple[str, ...] = (), only_roots: bool = False
) -> Callable[[str, str, Severity], CodeMeaning]:
    """(kind of device, code, severity) -> its meaning. user_induced: codes. catalogs: a site's own files. only_roots: as for
    read_text.

    What it gives raises PolicyError for a file that cannot be read.
    """

    @cache
    def book() -> CodeBook:
        from ftslurm.config.catalog_files import load_code_book

        return load_code_book(catalogs, only_roots, user_induced)

    return lambda kind, code, severity: book().meaning(kind, code, severity)
