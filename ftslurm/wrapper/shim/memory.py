"""How often the kernel has killed for memory."""

from __future__ import annotations

from ftslurm.wrapper.shim.files import content


def oom_kills(root: str = "") -> int | None:
    """How often the kernel has killed for memory in the cgroup of this process, None where nobody tells.

    root: what stands before /proc and /sys. Where the task's own cgroup has no memory controller its parents are asked,
    up to that of the step: whatever is above has others in it. Source: memory.events in the kernel's cgroup-v2.rst,
    memory.oom_control in its cgroup-v1/memory.rst.
    """
    places = {}
    for line in _lines(f"{root}/proc/self/cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            places["memory.events"] = f"{root}/sys/fs/cgroup", path
        elif "memory" in controllers.split(","):
            places["memory.oom_control"] = f"{root}/sys/fs/cgroup/memory", path
    for file, (base, path) in places.items():
        while True:
            for line in _lines(f"{base}{path}/{file}"):
                word, _, count = line.partition(" ")
                if word == "oom_kill" and count.isdigit():
                    return int(count)
            path = path.rpartition("/")[0]
            if "/step_" not in path:
                break
    return None


def _lines(path: str) -> list[str]:
    """Of a small file; none if it cannot be read."""
    try:
        return content(path).decode(errors="replace").splitlines()
    except OSError:
        return []
