"""What NVIDIA's codes ask for: Xids, SXids, recovery actions and the states of a GPU, as the catalogue nvidia.yaml has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace

from ftslurm.catalogs.remedies import CLASS_OF
from ftslurm.model.devices import CodeMeaning, Remedy, Severity
from ftslurm.model.values import dataclass

# `XID 79`, `xid79`, `Xid: 79`; of NVLink 5 also `XID 145 RLW_REMAP 0x00000040`.
_NUMBERED = re.compile(r"(XID|SXID|RECOVERY)[ :]*(\d{1,9})(?: +(\S+) +(0X[0-9A-F]{1,8}))?")


@dataclass(frozen=True, slots=True)
class XidEntry:
    """One code. part: gpu, memory, link, app, ... now, later: NVIDIA's buckets for the first time and for a repeat.

    program: mostly the program's doing. note: for people. sources: words that the catalogue's table of sources explains.
    """

    name: str
    remedy: Remedy
    part: str = ""
    mnemonic: str = ""
    now: str = ""
    later: str = ""
    program: bool = False
    note: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NvidiaCatalog:
    """All that is known of NVIDIA's codes; made by `xid_file.build_nvidia`. entries: normalised code -> entry.

    buckets: NVIDIA's names of actions -> what they are here. app_level: Xids that the Kubernetes device plug-in passes over.
    sources: word -> what it is.
    """

    entries: Mapping[str, XidEntry]
    buckets: Mapping[str, Remedy] = field(default_factory=dict)
    app_level: frozenset[int] = frozenset()
    sources: Mapping[str, str] = field(default_factory=dict)

    def meaning(self, code: str, severity: Severity = Severity.UNKNOWN) -> CodeMeaning:
        """What `code` asks for; NVIDIA grades no codes, so `severity` says nothing."""
        name = normalise(code)
        entry = self.entries.get(name)
        if entry is None:
            known = _NUMBERED.fullmatch(name) is not None
            return CodeMeaning(name, "not in NVIDIA's catalogue" if known else "not a fault code", CLASS_OF[Remedy.UNKNOWN])
        source = f"catalogue: {entry.now}" if entry.now else "catalogue"
        return CodeMeaning(name, entry.name, CLASS_OF[entry.remedy], entry.program, source, entry.remedy)

    def with_entries(self, changes: Mapping[str, XidEntry]) -> NvidiaCatalog:
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
