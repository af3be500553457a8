"""What the codes of NVIDIA's and AMD's GPUs ask for, as the catalogues nvidia.yaml and amd.yaml have them: Xids, SXids, recovery
actions and the states of a GPU. AMD has no numbers: the names are those of the probe. So it is with the devices of plugins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace

from ftslurm.model.devices import CLASS_OF, CodeMeaning, Remedy, Severity
from ftslurm.model.values import dataclass

# `XID 79`, `xid79`, `Xid: 79`; of NVLink 5 also `XID 145 RLW_REMAP 0x00000040`.
_NUMBERED = re.compile(r"(XID|SXID|RECOVERY)[ :]*(\d{1,9})(?: +(\S+) +(0X[0-9A-F]{1,8}))?")


@dataclass(frozen=True, slots=True)
class GpuEntry:
    """One code. part: gpu, memory, link, app, ... bucket: NVIDIA's name for what to do, empty where it has none.

    program: mostly the program's doing. note: for people. sources: words that the catalogue's table of sources explains.
    """

    name: str
    remedy: Remedy
    part: str = ""
    bucket: str = ""
    program: bool = False
    note: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuCatalog:
    """All that is known of one vendor's codes; made by `gpu_files`.

    entries: normalised code -> entry. sources: word -> what it is.
    """

    vendor: str
    entries: Mapping[str, GpuEntry]
    sources: Mapping[str, str] = field(default_factory=dict)
    unlisted: str = ""

    def entry(self, code: str) -> GpuEntry | None:
        return self.entries.get(normalise(code))

    def part_of(self, code: str) -> str:
        return entry.part if (entry := self.entry(code)) else ""

    def limit_of(self, code: str) -> tuple[int, float] | None:
        """No GPU vendor names a frequency."""
        return None

    def meaning(self, code: str, severity: Severity = Severity.UNKNOWN) -> CodeMeaning:
        """What `code` asks for; neither vendor grades its codes, so `severity` says nothing."""
        name = normalise(code)
        entry = self.entries.get(name)
        if entry is None:
            return CodeMeaning(name, f"not in {self.vendor}'s catalogue", CLASS_OF[Remedy.UNKNOWN])
        source = f"catalogue: {entry.bucket}" if entry.bucket else "catalogue"
        return CodeMeaning(name, entry.name, CLASS_OF[entry.remedy], entry.program, source, entry.remedy)

    def with_entries(self, changes: Mapping[str, GpuEntry]) -> GpuCatalog:
        """A site's own word; without a name the old one."""
        entries = dict(self.entries)
        for code, change in changes.items():
            name = normalise(code)
            entries[name] = replace(change, name=change.name or (entries[name].name if name in entries else name))
        return replace(self, entries=entries, sources={**self.sources, "site": "the site's own file"})


def normalise(code: str) -> str:
    """`Xid 79`, `xid79` -> `XID 79`; what is no numbered code only in capitals."""
    text = " ".join(code.strip().upper().split())
    found = _NUMBERED.fullmatch(text)
    if found is None:
        return text
    word, number, unit, status = found.groups()
    return f"{word} {int(number)}" + (f" {unit} 0X{int(status, 16):08X}" if unit else "")
