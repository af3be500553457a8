"""GPUs as NVML and amdsmi show them: the words that both probes share, and what is remembered from look to look. Values only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any

from ftslurm.devices.asking import Json
from ftslurm.model.devices import NO_DEVICES, DeviceHealth, DeviceReport, Severity
from ftslurm.model.text import whole
from ftslurm.model.values import Value, field, replace

GPU_LOST = "GPU-LOST"
ECC_UNCORRECTABLE = "ECC-UNCORRECTABLE"


class GpuLook(Value):
    """One GPU at one look. None: the library does not tell, which is no fault."""

    index: int  # the library's number, which shifts when a GPU is missing
    identity: str  # what stays (UUID or PCI address), empty if not told
    bus: str = ""  # the PCI address
    words: str = ""  # for people
    conditions: tuple[str, ...] = ()  # codes that hold at this moment
    uncorrectable: int | None = None  # memory errors that could not be corrected, counted since the last reset or boot
    recovery: int | None = None  # what NVIDIA's driver asks for (0: nothing)
    lost: bool = False
    trouble: tuple[str, ...] = ()  # calls that failed for no reason that says anything
    processes: tuple[int, ...] | None = None  # pids, None also if not asked for


class Heard(Value):
    """An event that the library told about one GPU."""

    identity: str
    code: str
    words: str


class Need(Enum):
    """What a GPU needs before a job may use it again."""

    NOTHING = "nothing"
    TIME = "time"  # it may come right by itself, and nothing here can hasten that
    RESET = "reset"
    REPLACEMENT = "replacement"  # nothing that a job can do on this node helps


class GpuFinding(Value):
    """One judgement of a GPU. busy: who is still on it, else empty. sure: False where the library did not tell enough.

    may_pass: worth waiting for before the remedy is used.
    """

    need: Need
    why: str
    busy: str = ""
    sure: bool = True
    may_pass: bool = False


class ResetAnswer(Value):
    """How an order to reset ended. done None: it did not answer in time. words: why not, in the tool's own words."""

    done: bool | None
    words: str = ""


def read_look(gpu: Json, identity: str, says_nothing: Collection[int], lost: Collection[int], words: str, **own: Any) -> GpuLook:
    """{"index", "told": {call: value}, "failed": {call: [status, words]}} of a vendor's child. identity: the call that tells what
    stays. says_nothing, lost: statuses of failed calls. words, own: what the vendor alone knows."""
    told, failed = gpu["told"], gpu["failed"]
    serial = f"serial {told['serial']}" if "serial" in told else ""
    return GpuLook(
        index=int(gpu["index"]),
        identity=str(told.get(identity, "")),
        bus=str(told.get("bus", "")),
        words=", ".join(str(part) for part in (told.get("name"), told.get("uuid"), told.get("bus"), serial, words) if part),
        uncorrectable=told.get("uncorrectable"),
        lost=any(code in lost for code, _ in failed.values()),
        trouble=_in_words((call, why) for call, (code, why) in failed.items() if code not in says_nothing),
        processes=tuple(told["processes"]) if "processes" in told else None,
        **own,
    )


def as_number(value: Any) -> float | None:
    """None for what a library writes where it does not know."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _in_words(failed: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """(call, why) -> the reasons, each with the calls it stood against."""
    calls: dict[str, list[str]] = {}
    for call, why in failed:
        calls.setdefault(why, []).append(call)
    return tuple(f"{why} ({', '.join(names)})" for why, names in calls.items())


def chosen(value: str | None, looks: Iterable[GpuLook]) -> frozenset[str] | None:
    """The identities that CUDA_VISIBLE_DEVICES or its like picks by numbers or UUIDs. None: all that are listed.

    Slurm sets it for a step: to numbers that count what the step's cgroup lets it see, or all GPUs of the node where
    the site does not constrain devices. A word that names no listed GPU (a MIG slice, the host's numbers in a
    container) makes the value say nothing about these.
    Source: gres.html of Slurm, "GPU Management"; CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    if value is None:
        return None
    if value.strip() in NO_DEVICES:
        return frozenset()
    listed = tuple(looks)
    picked = set()
    for word in (part.strip() for part in value.split(",")):
        found = [look.identity for look in listed if _names(word, look)]
        if len(found) != 1:
            return None
        picked.add(found[0])
    return frozenset(picked)


def _names(word: str, look: GpuLook) -> bool:
    if (index := whole(word)) is not None:
        return index == look.index
    return word.startswith("GPU-") and look.identity.startswith(word)


# --- what a probe remembers of its GPUs from look to look: names, first counts, events. No I/O; `now` is an argument

# An event is told once. Whoever asks because a rank has died asks seconds to minutes later; ten minutes cover a stop
# with its grace and a slow look, and an old event that did no harm does not follow the node for the rest of the job.
REMEMBER_EVENTS_S = 600.0


class _Gpu(Value, frozen=False):
    """One GPU. uncorrectable: its count when first seen or last healed."""

    device: str
    last: GpuLook
    uncorrectable: int | None


class GpuMemory(Value, frozen=False):
    """All GPUs of one kind that the job may use. visible: the value of the variable that picks them, None for all.

    A GPU keeps the name it had when first seen, its number then, whatever happens to the others; a GPU that is no
    longer listed is reported as lost, never passed over.
    """

    kind: str
    visible: str | None = None
    _gpus: dict[str, _Gpu] = field(default_factory=dict)
    _events: dict[str, dict[str, tuple[Heard, float]]] = field(default_factory=dict)  # by identity and code
    _listed: frozenset[str] = frozenset()
    _ours: frozenset[str] | None = None
    _chosen: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(gpu.device for gpu in self._sorted())

    def hear(self, heard: Heard, now: float) -> None:
        self._events.setdefault(heard.identity, {})[heard.code] = (heard, now)

    def take(self, looks: Iterable[GpuLook]) -> None:
        """A whole look."""
        named = [self._named(look) for look in self._with_identities(tuple(looks))]
        if not self._chosen and named:
            self._ours, self._chosen = chosen(self.visible, named), True
        ours = [look for look in named if self._ours is None or look.identity in self._ours]
        for look in ours:
            self._update(look)
        self._listed = frozenset(look.identity for look in ours)

    def looks(self) -> dict[str, GpuLook]:
        """Device -> what the last look showed; a GPU that is not listed any more is lost."""
        return {gpu.device: self._current(gpu) for gpu in self._sorted()}

    def codes(self, device: str, now: float) -> tuple[str, ...]:
        """All that holds for the device now: conditions, grown counts and events still remembered."""
        gpu = self._by_device(device)
        return self._codes(gpu, self._current(gpu), now)

    def reports(self, now: float) -> tuple[DeviceReport, ...]:
        return tuple(self._report(gpu, self._current(gpu), now) for gpu in self._sorted())

    def reports_in_silence(self, now: float, why: str) -> tuple[DeviceReport, ...]:
        """While the library does not answer: what was heard of before still stands, all else is unknown.

        Empty where nothing was heard.
        """
        if not any(self._heard(gpu, now) for gpu in self._gpus.values()):
            return ()
        silent = ((gpu, replace(gpu.last, lost=False, trouble=(why,), conditions=())) for gpu in self._sorted())
        return tuple(self._report(gpu, look, now) for gpu, look in silent)

    def healed(self, device: str, codes: tuple[str, ...] = ()) -> None:
        """`codes` are no news any more (all of the device if none is named)."""
        gpu = self._by_device(device)
        if not codes or ECC_UNCORRECTABLE in codes:
            gpu.uncorrectable = gpu.last.uncorrectable
        events = self._events.get(gpu.last.identity, {})
        for code in codes or tuple(events):
            events.pop(code, None)

    # ---- one GPU

    def _with_identities(self, looks: tuple[GpuLook, ...]) -> list[GpuLook]:
        """A GPU that does not even tell its UUID is the known one of that number, if that one is missing; and the
        other way round for one that tells it at last.
        """
        for look in looks:
            if look.identity and look.identity not in self._gpus and _nameless(look.index) in self._gpus:
                self._baptise(_nameless(look.index), look.identity)
        told = {look.identity for look in looks}
        by_number = {gpu.device: identity for identity, gpu in self._gpus.items() if identity not in told}
        return [
            look if look.identity else replace(look, identity=by_number.get(str(look.index), _nameless(look.index)))
            for look in looks
        ]

    def _baptise(self, old: str, new: str) -> None:
        self._gpus[new] = self._gpus.pop(old)
        if self._ours is not None and old in self._ours:
            self._ours = self._ours - {old} | {new}

    def _named(self, look: GpuLook) -> GpuLook:
        """A sick GPU does not tell its name any more, but is still the same."""
        known = self._gpus.get(look.identity)
        if known is None or not (look.lost or look.trouble):
            return look
        return replace(look, words=known.last.words, bus=look.bus or known.last.bus)

    def _update(self, look: GpuLook) -> None:
        known = self._gpus.get(look.identity)
        if known is None:
            self._gpus[look.identity] = _Gpu(self._free_name(look.index), look, look.uncorrectable)
            return
        known.last = look
        if look.uncorrectable is not None:
            # A count that was not told before is no news, and a reset or a new driver begins at 0 again.
            first = look.uncorrectable if known.uncorrectable is None else known.uncorrectable
            known.uncorrectable = min(first, look.uncorrectable)

    def _free_name(self, index: int) -> str:
        taken = {gpu.device for gpu in self._gpus.values()}
        while str(index) in taken:
            index += 1
        return str(index)

    def _current(self, gpu: _Gpu) -> GpuLook:
        if gpu.last.identity in self._listed:
            return gpu.last
        gone = f"not listed any more: {len(self._listed)} of {len(self._gpus)} GPUs are"
        return replace(gpu.last, lost=True, trouble=(gone,), conditions=(), recovery=None, processes=None)

    def _codes(self, gpu: _Gpu, look: GpuLook, now: float) -> tuple[str, ...]:
        grown = (gpu.last.uncorrectable or 0) > (gpu.uncorrectable or 0)
        state = ((GPU_LOST,) if look.lost else ()) + look.conditions + ((ECC_UNCORRECTABLE,) if grown else ())
        return tuple(dict.fromkeys((*state, *(heard.code for heard in self._heard(gpu, now)))))

    def _heard(self, gpu: _Gpu, now: float) -> list[Heard]:
        """What is still remembered."""
        events = self._events.get(gpu.last.identity, {})
        return [heard for heard, at in events.values() if now - at <= REMEMBER_EVENTS_S]

    def _report(self, gpu: _Gpu, look: GpuLook, now: float) -> DeviceReport:
        codes = self._codes(gpu, look, now)
        detail = "; ".join(filter(None, (look.words, *look.trouble, *(heard.words for heard in self._heard(gpu, now)))))
        if codes:
            return DeviceReport(gpu.device, self.kind, DeviceHealth.FAULTY, Severity.UNKNOWN, codes, detail)
        if look.trouble:
            return DeviceReport(gpu.device, self.kind, DeviceHealth.UNKNOWN, detail=detail)
        return DeviceReport(gpu.device, self.kind, DeviceHealth.GOOD, Severity.HINT, detail=detail)

    def _sorted(self) -> list[_Gpu]:
        return sorted(self._gpus.values(), key=lambda gpu: int(gpu.device))

    def _by_device(self, device: str) -> _Gpu:
        return next(gpu for gpu in self._gpus.values() if gpu.device == device)


def _nameless(index: int) -> str:
    return f"#{index}"
