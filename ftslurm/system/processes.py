"""What processes have done: IO and CPU time, read by psutil."""

from __future__ import annotations

from collections.abc import Iterable


def usage(pids: Iterable[int]) -> tuple[dict[tuple[int, float], int], float]:
    """((pid, start time) -> bytes of IO so far, CPU seconds so far) of all of `pids`.

    Bytes by calls (sockets and files alike) and those of the storage (mapped files show only there). CPU of children that
    have ended counts with their parent. Processes that end meanwhile or may not be looked at are passed over.
    Source: proc(5), /proc/pid/io.
    """
    import psutil

    io: dict[tuple[int, float], int] = {}
    cpu_s = 0.0
    for pid in pids:
        try:
            process = psutil.Process(pid)
            counters, times = process.io_counters(), process.cpu_times()
        except (psutil.Error, OSError):
            continue
        io[pid, process.create_time()] = (
            counters.read_chars + counters.write_chars + counters.read_bytes + counters.write_bytes
        )
        cpu_s += times.user + times.system + times.children_user + times.children_system
    return io, cpu_s
