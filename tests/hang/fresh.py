"""What ranks of job.py do of the kinds that came last: pauses at work, and standstills. Like job.py it knows nothing of ftslurm."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import hashlib
import lzma
import multiprocessing
import os
import queue
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable

import torch

OUT = os.environ["OUT"]
RANK = int(os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)


def _until(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _own(name: str) -> str:
    return f"{OUT}/{name}.{RANK}.{time.monotonic_ns()}"


def _outside(program: str) -> int:
    """A server that is no process of the job's; the port that it says."""
    argv = ["setsid", "--fork", sys.executable, "-I", "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        return int(server.stdout.readline())


# --- at work


def convert(seconds: float) -> None:
    """One rank converts a checkpoint to another format: reads, casts, writes."""
    goes_on, path = _until(seconds), _own("convert")
    torch.save({f"w{n}": torch.randn(256, 256) for n in range(16)}, path)
    while goes_on():
        state = torch.load(path)
        torch.save({name: value.half().float() for name, value in state.items()}, path)
    os.unlink(path)


def build(seconds: float) -> None:
    """A kernel is compiled by the C compiler, as an extension is at first use."""
    goes_on, path = _until(seconds), _own("kernel")
    with open(path + ".c", "w") as file:
        file.write(
            "\n".join(
                f"int f{n}(int a) {{ int s = 0; for (int i = 0; i < a; i++) s += i * {n} % (a + 1); return s; }}"
                for n in range(40)
            )
        )
    while goes_on():
        subprocess.run(["cc", "-O2", "-c", path + ".c", "-o", path + ".o"], check=True)


def install(seconds: float) -> None:
    """pip at the start of a job."""
    goes_on = _until(seconds)
    while goes_on():
        subprocess.run([sys.executable, "-m", "pip", "list", "--no-index"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def garbage(seconds: float) -> None:
    """A full collection over millions of objects, again and again."""
    goes_on = _until(seconds)
    kept = [[n] for n in range(400_000)]
    while goes_on():
        gc.collect()
    kept.clear()


def memory(seconds: float) -> None:
    """Pages are touched for the first time: the kernel's CPU time alone."""
    goes_on = _until(seconds)
    while goes_on():
        bytearray(64 << 20)


def unpack(seconds: float) -> None:
    """A data set is unpacked by a command."""
    goes_on, path = _until(seconds), _own("set")
    os.mkdir(path)
    with tarfile.open(path + ".tar", "w") as archive:
        for name in ("tarfile.py", "argparse.py", "typing.py"):
            archive.add(os.path.join(os.path.dirname(os.__file__), name), name)
    while goes_on():
        subprocess.run(["tar", "-xf", path + ".tar", "-C", path], check=True)
        time.sleep(0.05)


def _square(number: int) -> int:
    return sum(n * n for n in range(number))


def pooled(seconds: float) -> None:
    """A pool of processes tokenises, the rank waits for them."""
    goes_on = _until(seconds)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        while goes_on():
            pool.map(_square, [200_000] * 8)


def hashed(seconds: float) -> None:
    """The sums of a checkpoint: C that gives the lock away."""
    goes_on, piece = _until(seconds), b"x" * (256 << 20)
    while goes_on():
        hashlib.sha256(piece).digest()


def compressed(seconds: float) -> None:
    goes_on, piece = _until(seconds), os.urandom(1 << 18) * 8
    while goes_on():
        lzma.compress(piece)


def database(seconds: float) -> None:
    """Results go into a data base that syncs each row."""
    goes_on, path = _until(seconds), _own("results")
    with sqlite3.connect(path) as base:
        base.execute("create table t (a)")
        while goes_on():
            base.execute("insert into t values (?)", ("x" * 4000,))
            base.commit()
            time.sleep(0.02)


def pushed(seconds: float) -> None:
    """Results go to a server over a connection."""
    port = _outside(f"""
import socket, threading, os
threading.Timer({seconds + 10}, lambda: os._exit(0)).start()
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    there, _ = server.accept()
    while there.recv(1 << 16): pass
os._exit(0)
""")
    goes_on = _until(seconds)
    with socket.create_connection(("127.0.0.1", port)) as there:
        while goes_on():
            there.sendall(b"x" * 30_000)
            time.sleep(0.1)


def fetched(seconds: float) -> None:
    """A file comes over HTTP, slowly."""
    port = _outside(f"""
import http.server, os, threading, time
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        until = time.monotonic() + {seconds}
        while time.monotonic() < until:
            self.wfile.write(b"x" * 20_000); time.sleep(0.1)
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
threading.Timer({seconds + 10}, lambda: os._exit(0)).start()
print(server.server_port, flush=True)
server.serve_forever()
""")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        while answer.read(1 << 14):
            pass


def copied(seconds: float) -> None:
    """A thread copies to the shared folder, the rank waits for its end."""

    def copy() -> None:
        goes_on, path = _until(seconds), _own("copy")
        while goes_on():
            shutil.copytree(os.path.dirname(asyncio.__file__), path)
            shutil.rmtree(path)

    thread = threading.Thread(target=copy)
    thread.start()
    thread.join()


def prepared(seconds: float) -> None:
    """A thread prepares data in Python, the rank waits at a queue."""
    ready: queue.Queue[int] = queue.Queue()

    def prepare() -> None:
        goes_on = _until(seconds)
        while goes_on():
            _square(20_000)
        ready.put(1)

    threading.Thread(target=prepare).start()
    ready.get()


def mapped(seconds: float) -> None:
    """A file in memory is read through again and again."""
    goes_on = _until(seconds)
    values = torch.from_file(_filled(), size=4 << 20)
    while goes_on():
        values.sum()


def _filled() -> str:
    path = _own("mapped")
    torch.zeros(4 << 20).numpy().tofile(path)
    return path


def sorted_(seconds: float) -> None:
    goes_on = _until(seconds)
    while goes_on():
        torch.rand(2_000_000).sort()


def validated(seconds: float) -> None:
    """An evaluation on one rank with loader workers of its own."""
    goes_on = _until(seconds)

    class Rows(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> int:
            return _square(3000)

    rows = iter(torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=2))
    while goes_on():
        next(rows)


def synced(seconds: float) -> None:
    """A folder is brought up to date by a command that reads much and writes little."""
    goes_on = _until(seconds)
    while goes_on():
        subprocess.run(["grep", "-rc", "nothing of it", os.path.dirname(asyncio.__file__)], stdout=subprocess.DEVNULL)
        time.sleep(0.1)


def looked_up(seconds: float) -> None:
    """Many short commands, as a check of the environment makes them."""
    goes_on = _until(seconds)
    while goes_on():
        subprocess.run(["/bin/true"], check=True)


def woven(seconds: float) -> None:
    """Coroutines that compute in threads, as a data client does."""

    async def all_of() -> None:
        goes_on = _until(seconds)
        while goes_on():
            await asyncio.gather(*(asyncio.to_thread(_square, 30_000) for _ in range(4)))

    asyncio.run(all_of())


# --- standing still; each lets go at last, so that the next can be tried


def starved(seconds: float) -> None:
    """Waits at a queue whose filler has died."""
    filler = threading.Thread(target=lambda: None)
    filler.start()
    try:
        queue.Queue[int]().get(timeout=seconds)
    except queue.Empty:
        pass


def unnotified(seconds: float) -> None:
    condition = threading.Condition()
    with condition:
        condition.wait(seconds)


def unanswered(seconds: float) -> None:
    """HTTP to a server that takes the question and says nothing."""
    port = _outside(f"""
import socket, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    there, _ = server.accept()
    time.sleep({seconds})
""")
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()
    except OSError:
        pass


def killed_worker(seconds: float) -> None:
    """A worker of a pool was killed with its task, whose result never comes."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        lost = pool.apply_async(time.sleep, (1000,))
        time.sleep(0.3)
        os.kill(pool._pool[0].pid, signal.SIGKILL)
        try:
            lost.get(seconds)
        except multiprocessing.TimeoutError:
            pass


def semaphore(seconds: float) -> None:
    """A lock between processes, whose owner has died."""
    lock = multiprocessing.get_context("fork").Lock()
    owner = multiprocessing.get_context("fork").Process(target=lock.acquire)
    owner.start()
    owner.join()
    lock.acquire(timeout=seconds)


def mute_child(seconds: float) -> None:
    """Reads what a command prints that prints nothing."""
    subprocess.run(["sleep", str(seconds)], stdout=subprocess.PIPE, check=True)


def stopped_child(seconds: float) -> None:
    """A command of its own was stopped."""
    with subprocess.Popen(["sleep", "1"]) as child:
        child.send_signal(signal.SIGSTOP)
        threading.Timer(seconds, lambda: child.send_signal(signal.SIGCONT)).start()
        child.wait()


def tries_again(seconds: float) -> None:
    """Connects to a server that is not there, twice a second."""
    goes_on = _until(seconds)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        while goes_on():
            try:
                socket.create_connection(taken.getsockname(), timeout=1).close()
            except OSError:
                time.sleep(0.5)


def in_asyncio(seconds: float) -> None:
    """A coroutine looks again and again whether another one is done."""

    async def look() -> None:
        goes_on = _until(seconds)
        while goes_on():
            await asyncio.sleep(0.1)

    asyncio.run(look())


def signalled(seconds: float) -> None:
    """Waits for a signal that nobody sends."""
    signal.sigtimedwait({signal.SIGRTMIN + 3}, seconds)


def native_lock(seconds: float) -> None:
    """A lock of C that another owner keeps; the interpreter lock goes with it."""
    libc = ctypes.PyDLL(None)
    place = ctypes.create_string_buffer(64)
    libc.sem_init(place, 0, 0)
    threading.Thread(target=lambda: None).start()
    until = (ctypes.c_long * 2)(int(time.time() + seconds), 0)
    libc.sem_timedwait(place, ctypes.byref(until))


def locked_base(seconds: float) -> None:
    """A data base is locked by a process that has forgotten it."""
    path = _own("locked")
    hold = f"import sqlite3, time; b = sqlite3.connect({path!r}); b.execute('create table t (a)'); b.commit(); b.execute('begin exclusive'); print(1, flush=True); time.sleep({seconds})"
    with subprocess.Popen([sys.executable, "-I", "-c", hold], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            sqlite3.connect(path, timeout=seconds).execute("insert into t values (1)")
        except sqlite3.OperationalError:
            pass


def record_lock(seconds: float) -> None:
    """A POSIX lock on the shared folder, as of a cache, whose owner sleeps."""
    path = f"{OUT}/shared.lock"
    hold = f"import fcntl, time; f = open({path!r}, 'w'); fcntl.lockf(f, 2); print(1, flush=True); time.sleep({seconds})"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", hold], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with open(path, "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)


def backlog(seconds: float) -> None:
    """connect() to a server that accepts nobody any more."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        first = [socket.socket() for _ in range(3)]
        for each in first:
            each.setblocking(False)
            each.connect_ex(server.getsockname())
        try:
            socket.create_connection(server.getsockname(), timeout=seconds).recv(1)
        except OSError:
            pass
        for each in first:
            each.close()


def select_none(seconds: float) -> None:
    """A pipe that nobody writes to, looked at twice a second."""
    import select

    goes_on = _until(seconds)
    reads, writes = os.pipe()
    while goes_on():
        select.select([reads], [], [], 0.5)
    os.close(reads)
    os.close(writes)


def barrier_of_threads(seconds: float) -> None:
    """Threads that meet, and one never comes."""
    try:
        threading.Barrier(2).wait(seconds)
    except threading.BrokenBarrierError:
        pass


def manager(seconds: float) -> None:
    """A proxy of another process that does not answer any more."""
    with multiprocessing.get_context("fork").Manager() as served:
        event = served.Event()
        event.wait(seconds)


def pidfile(seconds: float) -> None:
    """Waits by a look a second for a process of another job to end."""
    goes_on = _until(seconds)
    while goes_on():
        os.kill(os.getpid(), 0)
        os.path.exists(f"{OUT}/pid")
        time.sleep(1.0)


AT_WORK: dict[str, Callable[[float], None]] = {
    "convert": convert, "build": build, "install": install, "garbage": garbage, "memory": memory, "unpack": unpack,
    "pooled": pooled, "hashed": hashed, "compressed": compressed, "database": database, "pushed": pushed, "fetched": fetched,
    "copied": copied, "prepared": prepared, "mapped": mapped, "sorted": sorted_, "validated": validated, "synced": synced,
    "looked-up": looked_up, "woven": woven,
}  # fmt: skip
STILL: dict[str, Callable[[float], None]] = {
    "starved": starved, "unnotified": unnotified, "unanswered": unanswered, "killed-worker": killed_worker,
    "semaphore": semaphore, "mute-child": mute_child, "stopped-child": stopped_child, "tries-again": tries_again,
    "in-asyncio": in_asyncio, "signalled": signalled, "native-lock": native_lock, "locked-base": locked_base,
    "record-lock": record_lock, "backlog": backlog, "select-none": select_none, "barrier-of-threads": barrier_of_threads,
    "manager": manager, "pidfile": pidfile,
}  # fmt: skip
