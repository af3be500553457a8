"""How often the kernel has killed for memory, and how much of it is left."""

from __future__ import annotations

from ftslurm.wrapper.shim.files import content


def oom_kills(root: str = "") -> int | None:
    """How often the kernel has killed for memory in the cgroup of this process, None where nobody tells.

    root: what stands before /proc and /sys. Where the task's own cgroup has no memory controller its parents are asked,
    up to that of the step: whatever is above has others in it. Source: memory.events in the kernel's cgroup-v2.rst,
    memory.oom_control in its cgroup-v1/memory.rst.
    """
    for unified, base, path in _cgroups(root):
        file = "memory.events" if unified else "memory.oom_control"
        while True:
            for line in _lines(f"{base}{path}/{file}"):
                word, _, count = line.partition(" ")
                if word == "oom_kill" and count.isdigit():
                    return int(count)
            path = path.rpartition("/")[0]
            if "/step_" not in path:
                break
    return None


def memory_left(root: str = "") -> float:
    """The least share of any limit of this process's cgroups, and of the node, that could still be had; file pages can be."""
    shares = []
    node = dict(line.split()[:2] for line in _lines(f"{root}/proc/meminfo"))
    if "MemAvailable:" in node:
        shares.append(int(node["MemAvailable:"]) / int(node["MemTotal:"]))
    for unified, base, path in _cgroups(root):
        limit, used = ("memory.max", "memory.current") if unified else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        names = ("inactive_file", "active_file") if unified else ("total_inactive_file", "total_active_file")
        while path:
            most, now = ("".join(_lines(f"{base}{path}/{file}")) for file in (limit, used))
            if most.isdigit() and now.isdigit() and int(most):
                stat = dict(line.split()[:2] for line in _lines(f"{base}{path}/memory.stat"))
                held = int(now) - sum(int(stat.get(name, 0)) for name in names)
                shares.append(1 - held / int(most))
            path = path.rstrip("/").rpartition("/")[0]
    return min(shares, default=1.0)


def _cgroups(root: str) -> list[tuple[bool, str, str]]:
    """Where the memory of this process is accounted: whether by cgroup v2, the mount, the path below it."""
    found = []
    for line in _lines(f"{root}/proc/self/cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            found.append((True, f"{root}/sys/fs/cgroup", path))
        elif "memory" in controllers.split(","):
            found.append((False, f"{root}/sys/fs/cgroup/memory", path))
    return found


def _lines(path: str) -> list[str]:
    """Of a small file; none if it cannot be read."""
    try:
        return content(path).decode(errors="replace").splitlines()
    except OSError:
        return []
