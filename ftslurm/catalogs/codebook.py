"""All device catalogues as one: what a code of some vendor asks for."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.catalogs.codes import AscendCatalog
from ftslurm.catalogs.gpu_codes import GpuCatalog
from ftslurm.model.devices import CodeMeaning, FaultClass, Severity
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class CodeBook:
    """Made by `catalogs.load_code_book`."""

    ascend: AscendCatalog
    nvidia: GpuCatalog
    amd: GpuCatalog

    def meaning(self, kind: str, code: str, severity: Severity) -> CodeMeaning:
        """What `code` asks for. kind: of the device, as its probe names it. Unknown for a kind or code that is not known."""
        if kind == "ascend":
            return self.ascend.meaning(code, severity)
        if kind in self.gpus:
            return self.gpus[kind].meaning(code, severity)
        return CodeMeaning(code, f"code of a device of unknown kind `{kind}`", FaultClass.UNKNOWN)

    def limit_of(self, code: str) -> tuple[int, float] | None:
        """(times, seconds): so often within so long on one chip is too often, by its vendor's own rule; None without one.

        Ascend alone has such rules (for 43 codes); its codes look like no other vendor's.
        """
        return self.ascend.limit_of(code)

    @property
    def gpus(self) -> Mapping[str, GpuCatalog]:
        return {"nvidia": self.nvidia, "amd": self.amd}
