"""Does a rank work while nothing gets on? What its processes use, read, write, send and print, without what only waits.
And do the node's devices work, by samples of their use, one an examination?"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from ftslurm.model.collectives import RankView
from ftslurm.model.devices import Utilisation
from ftslurm.policies.hang.process_activity import (
    LEAST_LOOKS,
    LEAST_SAMPLES,
    Connections,
    Look,
    Polling,
    polling,
    received,
    streamed,
    use_unchanged,
)
from ftslurm.policies.hang.whohangs import works
from ftslurm.system.processes import usage
from ftslurm.system.sockets import inodes_of, network_bytes
from ftslurm.wrapper.agent.processes import (
    is_server,
    look_at,
    main_thread,
    read_link,
    read_proc,
    thread_cpu_s,
    thread_io,
    threads_beside,
    threads_of,
    wakes_of,
)
from ftslurm.wrapper.shim.processes import descendants

USE_SAMPLES, USE_SHARE = 4, 0.3  # number of samples kept; share of the time of an examination
ReadUse = Callable[[float], Sequence[Utilisation]]


class DeviceUse:
    """The samples of the stall under way."""

    def __init__(self, read: ReadUse | None) -> None:
        """read: how busy the node's devices are, within so many seconds; None: there are none."""
        self._read = read
        self._samples: deque[Sequence[Utilisation]] = deque(maxlen=USE_SAMPLES)
        self._since = 0.0  # progress before them

    def at_work(self, budget_s: float, progress_at: float) -> bool | None:
        """Are the devices busy? By one more sample; None if this stall has too few, or there are no devices. progress_at: when it
        began.
        """
        if self._read is None:
            return None
        if self._since != progress_at:
            self._samples.clear()
            self._since = progress_at
        self._samples.append(self._read(USE_SHARE * budget_s))
        series, power = by_device(each for sample in self._samples for each in sample)
        if len(self._samples) < LEAST_SAMPLES or not series:
            return None
        # A rank that waits in a collective spins on its device, which shows constant use. Unknown counts as no work.
        return use_unchanged(series, power)[0] is False


def by_device(samples: Iterable[Utilisation]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """(device -> per cent, device -> watts) of what was measured, in order."""
    series: dict[str, list[float]] = {}
    power: dict[str, list[float]] = {}
    for each in samples:
        for values, value in ((series, each.percent), (power, each.power_w)):
            if value is not None:
                values.setdefault(each.device, []).append(value)
    return series, power


RATES_S = 3.0  # seconds over which rates of I/O and CPU are taken
STREAMS = (0, 0.0)  # key, in place of a process, for the traffic of the connections
Usage = tuple[dict[tuple[int, float], int], float]
Sample = tuple[float, dict[tuple[int, float], int], float]  # when, IO by process, CPU seconds
AskConnections = Callable[[], Connections]  # what each connection of the node has moved so far; asked once a look


class RankWork:
    """What one rank's processes do. polls_since: it looks again and again for something since then; None: it does not. worked_at:
    when it last did anything else; None: it was not looked at yet. children: processes below its command."""

    def __init__(self) -> None:
        self.polling: Polling | None = None
        self.polls_since: float | None = None
        self.worked_at: float | None = None
        self.children = 0
        self._samples: deque[Sample] = deque(maxlen=16)
        self._looks: deque[Look] = deque(maxlen=8)  # states of the main thread, one per sample
        self._trainer_looks: deque[Look] = deque(maxlen=8)  # of the training thread, if another one
        self._beside: deque[tuple[float, int]] = deque(maxlen=8)  # when, and how often the other threads have woken up
        self._streams: tuple[float, Connections] | None = None  # of its processes, at the last sample
        self._network: tuple[float, tuple[int, int]] | None = None  # where it has one of its own: bytes out and in
        self._streamed = 0
        self._servers: tuple[int, ...] | None = None  # threads that wait for others' requests, by polling or on a connection
        self._printed: int | None = None

    def begin_rest(self) -> None:
        """The rank made progress: its use in an earlier stall, and since, does not describe the next one."""
        self._samples.clear()
        self._looks.clear()
        self._trainer_looks.clear()
        self._beside.clear()
        self.polling = self.polls_since = self._streams = self._network = self._servers = None

    def forget_trainer(self) -> None:
        """Another thread trains."""
        self._trainer_looks.clear()

    def is_due(self, now: float) -> bool:
        """Is it time for another sample?"""
        return not self._samples or now - self._samples[-1][0] >= 0.9

    def sample(self, pid: int, trainer: int, asked: int, printed: int, connections: AskConnections, now: float) -> None:
        """Look at `pid` and what is below it, where `is_due`. trainer: the thread that trains, 0 if it is the main one. asked: of
        stores, in vain, by the probe. printed: bytes that its shim has passed on."""
        below = descendants(pid)
        self.children = len(below)
        io, cpu_s = self._without_servers(pid, *usage([pid, *below]))
        self._samples.append((now, {**io, STREAMS: self._stream([pid, *below], connections, now)}, cpu_s))
        self._looks.append(look_at(pid, pid, now, asked))
        if trainer:
            self._trainer_looks.append(look_at(pid, trainer, now))
        self._beside.append((now, sum(wakes_of(pid, thread) for thread in threads_beside(pid, trainer))))
        self.polling = polling(tuple(self._trainer_looks)) or polling(tuple(self._looks))
        self.polls_since = (self.polls_since or now) if self.polling else None
        cpu_percent, io_bytes_s = self.rates()
        polls_s = self.polling.per_s if self.polling else None
        seen = RankView(0, "", main_thread(pid)[0], cpu_percent=cpu_percent, io_bytes_s=io_bytes_s, polls_s=polls_s)
        more, self._printed = printed != self._printed, printed
        if self.worked_at is None or (more and len(self._samples) > 1) or works(seen):
            self.worked_at = now

    def rates(self) -> tuple[float | None, float | None]:
        """(CPU in per cent of a core, bytes of IO a second) of the process tree over the last seconds; what polling takes is left
        out."""
        return rates_of(self._samples, self.polling)

    def wakes(self) -> tuple[float | None, float | None]:
        """How often a second the thread that trains has woken up in this stall, and the program's other threads together."""
        trains = [(look.at, look.wakes) for look in self._trainer_looks or self._looks]
        return _per_s(trains), _per_s(list(self._beside))

    def rates_beside_main(self) -> tuple[float | None, float | None]:
        """The same without the main thread's CPU time, and with what polling takes."""
        mains = {look.at: look.cpu_s for look in self._looks}
        return rates_of([(at, io, cpu_s - mains[at]) for at, io, cpu_s in self._samples if at in mains])

    def _stream(self, pids: Sequence[int], connections: AskConnections, now: float) -> int:
        """Bytes of data that the connections of these processes have moved so far, in this stall and earlier ones."""
        if read_link(f"/proc/{pids[0]}/ns/net") not in ("", read_link("/proc/self/ns/net")):
            counts = network_bytes(pids[0])
            if self._network is not None and counts is not None:
                self._streamed += received(self._network[1], counts, now - self._network[0])
            self._network = (now, counts) if counts is not None else None
            return self._streamed
        here = connections()
        mine = {inode: here[inode] for inode in inodes_of(pids) if inode in here}
        if self._streams is not None:
            self._streamed += streamed(self._streams[1], mine, now - self._streams[0])
        self._streams = now, mine
        return self._streamed

    def _without_servers(self, pid: int, io: dict[tuple[int, float], int], cpu_s: float) -> Usage:
        """The usage without threads that only wait for others, or answer others' requests to a store: that is no work of this
        rank.
        """
        if self._servers is None:
            self._servers = tuple(thread for thread in threads_of(pid) if is_server(pid, thread))
        served = sum(thread_io(pid, thread) for thread in self._servers)
        used_s = sum(thread_cpu_s(pid, thread) for thread in self._servers)
        return {key: max(0, count - served) if key[0] == pid else count for key, count in io.items()}, cpu_s - used_s


def rates_of(
    samples: Sequence[tuple[float, dict[tuple[int, float], int], float]], polling: Polling | None = None
) -> tuple[float | None, float | None]:
    """(CPU in per cent of a core, bytes of I/O a second) of the process tree over the last seconds,
    without the cost of polling.
    """
    if len(samples) < 2:
        return None, None
    at, io, cpu_s = samples[-1]
    then = next((each for each in reversed(samples) if at - each[0] >= RATES_S - 0.5), samples[0])
    passed = at - then[0]
    if passed <= 0:
        return None, None
    # A new process counts from zero; an ended one has taken its count along.
    moved = sum(max(0, count - then[1].get(process, 0)) for process, count in io.items())
    cpu_percent, io_bytes_s = max(0.0, cpu_s - then[2]) / passed * 100, moved / passed
    if polling is not None:
        cpu_percent, io_bytes_s = max(0.0, cpu_percent - polling.cpu_percent), max(0.0, io_bytes_s - polling.io_bytes_s)
    return cpu_percent, io_bytes_s


def _per_s(counts: Sequence[tuple[float, int]]) -> float | None:
    """Of (when, how often so far); a thread that has ended takes its count along."""
    if len(counts) < LEAST_LOOKS:
        return None
    return max(0, counts[-1][1] - counts[0][1]) / (counts[-1][0] - counts[0][0])


def passed_on(shim: int | None) -> int:
    """Bytes that a shim has written: it passes its rank's output on, and writes almost nothing else."""
    found = re.search(r"^wchar:\s*(\d+)", read_proc(f"/proc/{shim}/io"), re.M) if shim else None
    return int(found[1]) if found else 0
