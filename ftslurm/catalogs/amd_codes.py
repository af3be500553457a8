"""What the faults of AMD's GPUs ask for. AMD has no numbers for them: the names are those of the probe, amd.yaml lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ftslurm.catalogs.remedies import CLASS_OF
from ftslurm.model.devices import CodeMeaning, Remedy, Severity
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class AmdEntry:
    """One fault. program: mostly the program's doing. sources: words that the catalogue's table of sources explains."""

    name: str
    remedy: Remedy
    program: bool = False
    note: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AmdCatalog:
    """Made by `xid_file.build_amd`. sources: word -> what it is."""

    entries: Mapping[str, AmdEntry]
    sources: Mapping[str, str] = field(default_factory=dict)

    def meaning(self, code: str, severity: Severity = Severity.UNKNOWN) -> CodeMeaning:
        """What `code` asks for; AMD grades none, so `severity` says nothing."""
        name = code.strip().upper()
        entry = self.entries.get(name)
        if entry is None:
            return CodeMeaning(name, "not in AMD's catalogue", CLASS_OF[Remedy.UNKNOWN])
        return CodeMeaning(name, entry.name, CLASS_OF[entry.remedy], entry.program, "catalogue", entry.remedy)

    def with_entries(self, changes: Mapping[str, AmdEntry]) -> AmdCatalog:
        """A site's own word; without a name the old one."""
        entries = dict(self.entries)
        for code, change in changes.items():
            name = code.strip().upper()
            entries[name] = replace(change, name=change.name or (entries[name].name if name in entries else name))
        return replace(self, entries=entries, sources={**self.sources, "site": "the site's own file"})
