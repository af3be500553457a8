"""All device catalogues as one: what a code of some vendor asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ftslurm.catalogs.amd_codes import AmdCatalog
from ftslurm.catalogs.codes import AscendCatalog
from ftslurm.catalogs.xids import NvidiaCatalog
from ftslurm.model.devices import CodeMeaning, FaultClass, Severity
from ftslurm.model.values import dataclass


class Catalog(Protocol):
    """One vendor's codes."""

    def meaning(self, code: str, severity: Severity) -> CodeMeaning: ...


@dataclass(frozen=True, slots=True)
class CodeBook:
    """Made by `catalogs.load_code_book`."""

    ascend: AscendCatalog
    nvidia: NvidiaCatalog
    amd: AmdCatalog

    def meaning(self, kind: str, code: str, severity: Severity) -> CodeMeaning:
        """What `code` asks for. kind: of the device, as its probe names it. Unknown for a kind or code that is not known."""
        catalog = self._catalogs.get(kind)
        if catalog is None:
            return CodeMeaning(code, f"code of a device of unknown kind `{kind}`", FaultClass.UNKNOWN)
        return catalog.meaning(code, severity)

    def limit_of(self, code: str) -> tuple[int, float] | None:
        """(times, seconds): so often within so long on one chip is too often, by its vendor's own rule; None without one.

        Ascend alone has such rules (for 43 codes); its codes look like no other vendor's.
        """
        return self.ascend.limit_of(code)

    @property
    def _catalogs(self) -> Mapping[str, Catalog]:
        return {"ascend": self.ascend, "nvidia": self.nvidia, "amd": self.amd}
