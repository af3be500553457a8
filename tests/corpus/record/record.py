"""Runs what a corpus file's `recipe` says, one process a rank, and writes what came out into the file as `ranks`.

    python tests/corpus/record/record.py tests/corpus/gloo-peer-killed.yaml ...

recipe: {run: [python, train.py, killed, --ranks, "2"], stop_after_s: 0.3} and, where wanted, env: {NAME: value},
files: {name: text} put beside the program, port_taken: true, tmpfs_kb: 64 (mounted at ./full, for root), user: 65534.

As the wrapper does it, the ranks that live `stop_after_s` after the first failure get SIGTERM (`stopped`), 3 s later SIGKILL.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PYTHON = "Python " + ".".join(map(str, sys.version_info[:3]))
LIMIT_S, GRACE_S, JOIN_S = 60.0, 3.0, 0.02


class Literal(str):
    """Text that YAML shall write as it is read."""


yaml.SafeDumper.add_representer(
    Literal, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|" if "\n" in text else None)
)
yaml.SafeDumper.add_representer(
    list,
    lambda dumper, items: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", items, flow_style=all(isinstance(i, (int, str)) and not isinstance(i, Literal) for i in items)
    ),
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrub(text: str, folder: Path, node: str) -> str:
    """The text with this machine's paths and name replaced by a user's."""
    for path, name in (
        (str(folder), "/home/user"),
        (sys.prefix, "/opt/venv"),
        (sys.base_prefix, "/opt/python"),
        (str(HERE), "/home/user"),
    ):
        text = text.replace(path, name)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", node, text)


def play(nodes: dict[str, list[int]], recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """The ends of the ranks, as the corpus has them: a rank that was stopped before it said anything is left out."""
    names = {rank: node for node, ranks in nodes.items() for rank in ranks}
    folder = Path(tempfile.mkdtemp(prefix="run-"))
    folder.chmod(0o755)
    shutil.copy(HERE / "train.py", folder)
    for name, text in recipe.get("files", {}).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    if size := recipe.get("tmpfs_kb"):
        (folder / "full").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder / "full")], check=True)
    port = free_port()
    holder = socket.socket()
    if recipe.get("port_taken"):
        holder.bind(("0.0.0.0", port))
        holder.listen()
    argv = [sys.executable if word == "python" else word for word in recipe["run"]]
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    base = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(names)), **recipe.get("env", {})}
    start = time.monotonic()
    tasks, logs = {}, {rank: [] for rank in names}
    watch = selectors.DefaultSelector()
    for rank in sorted(names):
        tasks[rank] = subprocess.Popen(
            argv, cwd=folder, env=base | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, user=recipe.get("user"),
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        for stream, pipe in (("out", tasks[rank].stdout), ("err", tasks[rank].stderr)):
            watch.register(pipe, selectors.EVENT_READ, (rank, stream))
    ended: dict[int, float] = {}
    stopped: set[int] = set()
    failed_at = killed_at = None
    while len(ended) < len(tasks) or watch.get_map():
        for key, _ in watch.select(0.002):
            data = os.read(key.fileobj.fileno(), 1 << 16)
            if data:
                logs[key.data[0]].append([time.monotonic() - start, key.data[1], data])
            else:
                watch.unregister(key.fileobj)
        now = time.monotonic()
        for rank, task in tasks.items():
            if rank not in ended and task.poll() is not None:
                ended[rank] = now - start
                if task.returncode and failed_at is None:
                    failed_at = now
        overdue = now - start > LIMIT_S
        if not stopped and (overdue or (failed_at is not None and now - failed_at >= recipe.get("stop_after_s", 0.3))):
            stopped = set(tasks) - set(ended) or {-1}
            end(tasks, stopped, signal.SIGTERM)
            killed_at = now + GRACE_S
        if killed_at is not None and now > killed_at:
            end(tasks, set(tasks), signal.SIGKILL)  # children that outlive their rank hold its pipes
            killed_at = now + GRACE_S
    holder.close()
    if recipe.get("tmpfs_kb"):
        subprocess.run(["umount", str(folder / "full")], check=True)
    shutil.rmtree(folder)
    order = [rank for rank in sorted(tasks) if logs[rank] or rank not in stopped]
    return [
        {
            "rank": rank, "status": max(tasks[rank].returncode, 0), "signal": max(-tasks[rank].returncode, 0),
            "at": round(ended[rank], 3), "stopped": rank in stopped, "log": pieces(logs[rank], folder, names[rank]),
        }
        for rank in order
    ]  # fmt: skip


def end(tasks: dict[int, subprocess.Popen[bytes]], ranks: set[int], number: int) -> None:
    for rank in ranks & set(tasks):
        try:
            os.killpg(tasks[rank].pid, number)
        except ProcessLookupError:
            pass


def pieces(chunks: list[list[Any]], folder: Path, node: str) -> list[list[Any]]:
    """What was read, with what came within `JOIN_S` joined."""
    joined: list[list[Any]] = []
    for at, stream, data in chunks:
        if joined and joined[-1][1] == stream and at - joined[-1][0] < JOIN_S:
            joined[-1][2] += data
        else:
            joined.append([at, stream, data])
    return [[round(at, 3), stream, Literal(scrub(data.decode(errors="replace"), folder, node))] for at, stream, data in joined]


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        case = yaml.safe_load(path.read_text())
        case["made_by"] = f"record/record.py, torch {version('torch').partition('+')[0]}, {PYTHON}"
        case["ranks"] = play(case["nodes"], case["recipe"])
        keys = ("what", "source", "made_by", "recipe", "nodes", "ranks", "faults", "bad_nodes", "expect", "why")
        whole = {key: case[key] for key in keys if key in case}
        path.write_text(yaml.dump(whole, Dumper=yaml.SafeDumper, sort_keys=False, width=130, allow_unicode=True))
        ends = " ".join(f"{r['rank']}:{'s' if r['stopped'] else ''}{-r['signal'] or r['status']}" for r in case["ranks"])
        print(path.stem, ends, flush=True)


if __name__ == "__main__":
    main()
