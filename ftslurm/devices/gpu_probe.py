"""The probe for GPUs that a library shows: all that NVIDIA and AMD have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ftslurm.devices.asking import Json, LibraryChild, NoAnswer, look_until
from ftslurm.devices.gpu_looks import GpuFinding, GpuLook, GpuMemory, Heard, Need, ResetAnswer
from ftslurm.model.devices import HealResult, ProbeAnswer, Utilisation
from ftslurm.model.values import Value
from ftslurm.system.commands import Runner
from ftslurm.system.plugins import pip_line

# One look while healing; without a persistence daemon each one that follows a reset sets the GPUs up anew, seconds each.
LOOK_LIMIT_S = 30.0
# Also the last look before a deadline gets the time a healthy library needs.
LEAST_LOOK_S = 5.0
# In the end a list of pids is for people.
PIDS_SHOWN = 5


class Facts(Value):
    """What the vendor's library tells, read: pure functions."""

    heard: Callable[[Json], Heard]  # of an event as the child tells it
    look: Callable[[Json], GpuLook]  # of a GPU as the child tells it
    need: Callable[[GpuLook, tuple[str, ...]], GpuFinding]  # to be rid of these codes; `busy` is not asked for here
    utilisation: Callable[[str, Json], Utilisation]  # of a device, and the answer to `utilisation` for it


class GpuProbe(ABC):
    """Reads the GPUs of one vendor and heals them. dev: where device nodes are; the rest as for AscendProbe.

    library, python_module, extra: names for people, for the import and for pip. child: module whose `main` asks the library.
    visible: the variables that pick GPUs for a job, the first one set counts. shares_resets: a reset of one GPU may disturb the
    others, so all have to be idle.
    """

    kind: str
    facts: Facts
    library: str
    python_module: str
    extra: str
    child: str
    visible: tuple[str, ...]
    shares_resets: bool

    def __init__(
        self,
        run: Runner,
        env: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        dev: Path = Path("/dev"),
    ) -> None:
        self._run, self._env, self._sleep, self._clock, self._dev = run, env, sleep, clock, dev
        self._child = LibraryChild(self.library, self.child, env)
        self._memory = GpuMemory(self.kind, next((env[name] for name in self.visible if name in env), None))
        self._extra_asked_for = False

    @abstractmethod
    def present(self) -> bool:
        """Is there any sign of such GPUs? Touches none."""

    @abstractmethod
    def certain(self) -> bool:
        """Is it more than the library's file, which images carry to nodes without GPUs too?"""

    @abstractmethod
    def order_reset(self, look: GpuLook, timeout_s: float) -> ResetAnswer:
        """Reset this GPU. Whatever this process has open is to be closed first."""

    def missing_extra(self) -> str:
        """The extra of ftslurm without which nothing can be read here, empty if it is installed."""
        return "" if _is_installed(self.python_module) else self.extra

    def close(self) -> None:
        """Let go of the devices."""
        self._child.close()

    def read(self, timeout_s: float) -> ProbeAnswer:
        """All GPUs the job can see, in `timeout_s` and what it takes to end a library that hangs (about a second)."""
        if not _is_installed(self.python_module):
            return self._without_extra()
        try:
            self._look(timeout_s)
        except NoAnswer as silence:
            if silence.absent and not self._memory.devices and not self.certain():
                return ProbeAnswer()
            heard_of = self._memory.reports_in_silence(self._clock(), str(silence))
            return ProbeAnswer(heard_of) if heard_of else ProbeAnswer(error=str(silence))
        return ProbeAnswer(self._memory.reports(self._clock()))

    def utilisation(self, timeout_s: float) -> tuple[Utilisation, ...]:
        if not _is_installed(self.python_module):
            return ()
        until = self._clock() + timeout_s
        try:
            if not self._memory.devices:
                self._look(timeout_s)
            return tuple(self._use(until - self._clock()))
        except NoAnswer:
            return ()

    def _use(self, timeout_s: float) -> Iterator[Utilisation]:
        by_identity = {look.identity: device for device, look in self._memory.looks().items()}
        told = self._ask("utilisation", timeout_s)
        for look, gpu in zip(self._looks_of(told), told, strict=True):
            if look.identity in by_identity:
                yield self.facts.utilisation(by_identity[look.identity], gpu)

    def heal(self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float) -> HealResult:
        """As the protocol says. Events do not clear: they are over when nobody is left on the GPU, it answers, and
        neither its state nor its codes ask for more. What waiting cannot cure is not waited for.
        """
        started = self._clock()
        finding = self._settled(device, codes, wait_s)
        took = f"{self._clock() - started:.0f} s"
        if finding.need is Need.NOTHING and not finding.busy:
            self._memory.healed(device, codes)
            return HealResult(device, True, f"healed by itself after {took}: {finding.why}")
        healed = False if finding.sure else None
        if finding.need is not Need.RESET:
            return HealResult(device, healed, f"after {took}: {finding.busy or finding.why}")
        if not may_reset:
            return HealResult(device, healed, f"{finding.why}, and no reset is allowed")
        if finding.busy:
            return HealResult(device, healed, f"not reset: {finding.busy}")
        return self._reset(device, reset_wait_s)

    # ---- looking

    def _look(self, timeout_s: float, processes: bool = False) -> None:
        """Take all GPUs and events into memory. Raises: NoAnswer."""
        self._memory.take(self._looks_of(self._ask("look", timeout_s, processes=processes)))

    def _looks_of(self, gpus: list[Json]) -> list[GpuLook]:
        try:
            return [self.facts.look(gpu) for gpu in gpus]
        except (KeyError, TypeError, ValueError) as error:
            raise NoAnswer(f"{self.library} sent an unreadable answer: {error!r}") from None

    def _ask(self, what: str, timeout_s: float, **more: object) -> list[Json]:
        if timeout_s <= 0:
            raise NoAnswer(f"no time left to ask {self.library}")
        answer = self._child.ask({"ask": what, **more}, timeout_s, self._hear)
        gpus: Any = answer.get("gpus")
        if not isinstance(gpus, list):
            raise NoAnswer(f"the process that asks {self.library} sent an unreadable answer")
        return gpus

    def _hear(self, event: Json) -> None:
        self._memory.hear(self.facts.heard(event), self._clock())

    def _without_extra(self) -> ProbeAnswer:
        """Said once: the job runs, and hearing it every few seconds helps nobody."""
        if self._extra_asked_for:
            return ProbeAnswer()
        self._extra_asked_for = True
        return ProbeAnswer(
            error=f"there are {self.kind} GPUs here, but Python has no `{self.python_module}` to look at them with: "
            + pip_line(self.extra)
        )

    # ---- healing

    def _settled(self, device: str, codes: tuple[str, ...], limit_s: float) -> GpuFinding:
        """The judgement of the device, once waiting up to `limit_s` has changed what it can."""
        until = self._clock() + limit_s
        return look_until(partial(self._finding, device, codes, until), _is_settled, until, self._clock, self._sleep)

    def _finding(self, device: str, codes: tuple[str, ...], until: float) -> GpuFinding:
        try:
            self._look(self._look_limit_s(until), processes=True)
        except NoAnswer as silence:
            return GpuFinding(Need.TIME, str(silence), sure=False)
        looks = self._memory.looks()
        if device not in looks:
            # A wrong name must not cost a whole node its GPUs.
            return GpuFinding(Need.REPLACEMENT, f"{self.library} lists no GPU {device}", sure=False)
        if looks[device].lost:
            # The libraries list the GPUs when they start: only the next process can see it back.
            self._child.close()
        return self._judged(device, codes or self._memory.codes(device, self._clock()), looks)

    def _judged(self, device: str, codes: tuple[str, ...], looks: Mapping[str, GpuLook]) -> GpuFinding:
        look = looks[device]
        if look.lost:
            # It may come back from a reset by somebody else; from here it cannot be reached.
            return GpuFinding(Need.TIME, f"GPU {device} is lost: {'; '.join(look.trouble) or 'it does not answer'}")
        if look.trouble:
            return GpuFinding(Need.TIME, f"GPU {device}: {'; '.join(look.trouble)}", sure=False)
        finding = self.facts.need(look, codes)
        all_idle = finding.need is Need.RESET and self.shares_resets
        return GpuFinding(finding.need, finding.why, _users(looks if all_idle else {device: look}), True, finding.may_pass)

    def _reset(self, device: str, wait_s: float) -> HealResult:
        started, until = self._clock(), self._clock() + wait_s
        look = self._memory.looks()[device]
        answer = self.order_reset(look, wait_s)
        self._child.close()
        if answer.done is not True:
            return HealResult(device, answer.done, answer.words)
        finding = self._back(device, until)
        took = f"{self._clock() - started:.0f} s"
        if finding.need is Need.NOTHING:
            self._memory.healed(device)
            return HealResult(device, True, f"healed by a reset after {took}")
        return HealResult(device, False if finding.sure else None, f"reset done, but after {took}: {finding.why}")

    def _back(self, device: str, until: float) -> GpuFinding:
        """Does the GPU answer again, in need of nothing, and is every GPU of the node still there?"""
        look = partial(self._after_reset, device, until)
        return look_until(look, lambda finding: finding.need is Need.NOTHING, until, self._clock, self._sleep)

    def _after_reset(self, device: str, until: float) -> GpuFinding:
        try:
            self._look(self._look_limit_s(until))
        except NoAnswer as silence:
            return GpuFinding(Need.TIME, str(silence), sure=False)
        looks = self._memory.looks()
        for name in (device, *looks):
            if looks[name].lost or looks[name].trouble:
                return self._judged(name, (), looks)
        return self.facts.need(looks[device], ())

    def _look_limit_s(self, until: float) -> float:
        return min(LOOK_LIMIT_S, max(until - self._clock(), LEAST_LOOK_S))


def _is_settled(finding: GpuFinding) -> bool:
    """Can waiting not change it any more?"""
    return finding.need is Need.REPLACEMENT or not (finding.need is Need.TIME or finding.busy or finding.may_pass)


def _users(looks: Mapping[str, GpuLook]) -> str:
    for device, look in looks.items():
        if look.processes:
            pids = " ".join(str(pid) for pid in look.processes[:PIDS_SHOWN])
            noun = "process" if len(look.processes) == 1 else f"{len(look.processes)} processes:"
            return f"{noun} {pids} still on GPU {device}"
    return ""


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None


# The loader's list of all libraries in the system's folders, ld.so(8): names end with a zero byte.
LOADER_CACHE = Path("/etc/ld.so.cache")


def is_library_here(name: str, env: Mapping[str, str], folders: Iterable[str] = ()) -> bool:
    """Will the dynamic loader find `name` in LD_LIBRARY_PATH, `folders` or the system's folders? Loads nothing."""
    places = (*env.get("LD_LIBRARY_PATH", "").split(":"), *folders)
    if any(folder and (Path(folder) / name).is_file() for folder in places):
        return True
    try:
        return name.encode() + b"\0" in LOADER_CACHE.read_bytes()
    except OSError:
        return False
