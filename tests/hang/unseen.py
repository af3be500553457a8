"""What ranks of job.py do of the kinds written after the rules were last touched. Like job.py it knows nothing of ftslurm."""

from __future__ import annotations

import concurrent.futures
import ctypes
import fcntl
import importlib
import json
import mmap
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable

import torch
from fresh import _outside, _own, _square, _until

OUT = os.environ["OUT"]


# --- at work


def memmap(seconds: float) -> None:
    """Weights are written through a mapped file, piece by piece: no call of read or write, hardly any CPU time."""
    goes_on, path, piece = _until(seconds), _own("memmap"), 2 << 20
    with open(path, "wb+") as file:
        file.truncate(32 << 20)
        with mmap.mmap(file.fileno(), 32 << 20) as there:
            at = 0
            while goes_on():
                there[at : at + piece] = os.urandom(1) * piece
                there.flush(at, piece)
                at = (at + piece) % (32 << 20)
                time.sleep(0.3)
    os.unlink(path)


def niced(seconds: float) -> None:
    """A command at the lowest priority prepares data; on a busy machine it hardly gets on."""
    line = (
        f"import os, time; os.nice(19); until = time.monotonic() + {seconds}\nwhile time.monotonic() < until: sum(range(10000))"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", line], check=True)


def thin(seconds: float) -> None:
    """A pipeline of a shell brings some kilobytes twice a second, as over a long line."""
    many = int(seconds / 0.4)
    line = f"for n in $(seq {many}); do head -c 6000 /dev/zero; sleep 0.4; done | cat > {_own('thin')}"
    subprocess.run(["sh", "-c", line], check=True)


class Rows(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        return _square(3000)


def spawned_loader(seconds: float) -> None:
    """Workers are made by spawn at each epoch, and import torch each time."""
    goes_on = _until(seconds)
    name, main = "__file__", sys.modules["__main__"]
    kept = main.__dict__.pop(name, None)  # which spawn would run in the workers as well
    try:
        while goes_on():
            rows = torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=1, multiprocessing_context="spawn")
            for _ in rows:
                pass
    finally:
        if kept is not None:
            setattr(main, name, kept)


def tenth(seconds: float) -> None:
    """Computes an eighth of the time, for the rest it waits for a slow device."""
    goes_on, value = _until(seconds), torch.ones(64, 64)
    while goes_on():
        until = time.process_time() + 0.06
        while time.process_time() < until:
            value = (value @ value).clamp(-1, 1)
        time.sleep(0.42)


def direct_read(seconds: float) -> None:
    """A data set is read past the page cache, with rests."""
    goes_on, path = _until(seconds), _own("direct")
    with open(path, "wb") as file:
        file.write(b"x" * (8 << 20))
        os.fsync(file.fileno())
    there, piece = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 18)
    at = 0
    while goes_on():
        os.preadv(there, [piece], at)
        at = (at + (1 << 18)) % (8 << 20)
        time.sleep(0.3)
    os.close(there)
    os.unlink(path)


def spliced(seconds: float) -> None:
    """A file is copied inside the kernel, at a limited rate."""
    goes_on, path = _until(seconds), _own("spliced")
    with open(path, "wb") as file, open(sys.executable, "rb") as source:
        while goes_on():
            os.sendfile(file.fileno(), source.fileno(), 0, 50_000)
            time.sleep(0.25)
    os.unlink(path)


def dynamo(seconds: float) -> None:
    """A model is compiled anew for each shape."""
    goes_on, width = _until(seconds), 2
    while goes_on():
        torch._dynamo.reset()
        torch.compile(lambda value: (value * 2 + 1).relu().sum(), backend="aot_eager")(torch.ones(width))
        width += 1


# --- standing still; each lets go at last, so that the next can be tried


def resolver(seconds: float) -> None:
    """Asks a name server that does not answer, again and again, as libc's resolver does."""
    goes_on = _until(seconds)
    with socket.socket(type=socket.SOCK_DGRAM) as silent, socket.socket(type=socket.SOCK_DGRAM) as asks:
        silent.bind(("127.0.0.1", 0))
        asks.settimeout(1.5)
        while goes_on():
            asks.sendto(b"x" * 40, silent.getsockname())
            try:
                asks.recv(512)
            except TimeoutError:
                pass


class _Endless(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        return index


def stopped_worker(seconds: float) -> None:
    """The only worker of a loader was stopped."""
    rows = iter(torch.utils.data.DataLoader(_Endless(), batch_size=4, num_workers=1, multiprocessing_context="fork"))
    next(rows)
    worker = rows._workers[0].pid  # type: ignore[attr-defined]
    os.kill(worker, signal.SIGSTOP)
    threading.Timer(seconds, os.kill, (worker, signal.SIGCONT)).start()
    goes_on = _until(seconds)
    while goes_on():
        next(rows)


def nested_pool(seconds: float) -> None:
    """A task of a full pool waits for a task that it has put into the same pool."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def outer() -> None:
            inner = pool.submit(int)
            try:
                inner.result(seconds)
            except concurrent.futures.TimeoutError:
                inner.cancel()

        pool.submit(outer).result()


def import_lock(seconds: float) -> None:
    """A thread hangs inside an import, and the rank wants the same module."""
    name = f"stuck_{os.getpid()}_{time.monotonic_ns()}"
    with open(f"{OUT}/{name}.py", "w") as file:
        file.write(f"import time\ntime.sleep({seconds})\n")
    sys.path.insert(0, OUT)
    importlib.invalidate_caches()
    threading.Thread(target=importlib.import_module, args=(name,)).start()
    time.sleep(0.3)
    importlib.import_module(name)


def undrained(seconds: float) -> None:
    """Joins a process that cannot end before its queue is read."""
    makes = multiprocessing.get_context("fork")
    results = makes.Queue()
    process = makes.Process(target=results.put, args=(b"x" * (4 << 20),))
    process.start()
    threading.Timer(seconds, results.get).start()
    process.join()


def full_child(seconds: float) -> None:
    """Waits for the end of a command that writes more than the pipe holds, and reads nothing of it."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "print('x' * (1 << 20))"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        threading.Timer(seconds, child.stdout.read).start()
        child.wait()


def forked_lock(seconds: float) -> None:
    """A child made by fork while a thread held a lock wants this lock; the rank waits for the child."""
    lock = threading.Lock()
    lock.acquire()
    child = os.fork()
    if not child:
        lock.acquire()
        os._exit(0)
    threading.Timer(seconds, os.kill, (child, signal.SIGKILL)).start()
    os.waitpid(child, 0)


def asks_somebody(seconds: float) -> None:
    """A prompt at a terminal that nobody sits at."""
    there, here = os.openpty()
    threading.Timer(seconds, os.write, (there, b"c\n")).start()
    os.read(here, 80)
    os.close(here)
    os.close(there)


def tracker(seconds: float) -> None:
    """The end of a run is to be told to a service, whose thread does nothing but its heartbeat."""
    port = _outside("""
import socket, os
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    there, _ = server.accept()
    while heard := there.recv(100): there.sendall(heard)
os._exit(0)
""")
    goes_on, told = _until(seconds), threading.Event()

    def beat() -> None:
        with socket.create_connection(("127.0.0.1", port)) as there:
            while goes_on():
                there.sendall(b"x" * 60)
                there.recv(100)
                time.sleep(1.0)
        told.set()

    threading.Thread(target=beat).start()
    told.wait()


def backoff(seconds: float) -> None:
    """Tries again and again to open what is not there, and waits longer each time."""
    goes_on, wait_s = _until(seconds), 0.05
    while goes_on():
        try:
            open(f"{OUT}/not there").close()
        except OSError:
            time.sleep(wait_s)
            wait_s = min(4.0, 2 * wait_s)


def yields(seconds: float) -> None:
    """Spins until a flag is set that nobody sets, and offers its core each time."""
    goes_on, done = _until(seconds), threading.Event()
    while goes_on() and not done.is_set():
        os.sched_yield()


def debugger(seconds: float) -> None:
    """Somebody has attached to the process and forgotten it."""
    attach = f"""
import ctypes, os, time
libc, pid = ctypes.CDLL(None, use_errno=True), os.getppid()
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
threads = [int(each) for each in os.listdir(f"/proc/{{pid}}/task")]
for thread in threads: libc.ptrace(16, thread, None, None)
for thread in threads: os.waitpid(thread, 0x40000000)
time.sleep({seconds})
for thread in threads: libc.ptrace(17, thread, None, None)
"""
    ctypes.CDLL(None).prctl(0x59616D61, -1, 0, 0, 0)  # PR_SET_PTRACER: whoever may
    subprocess.run([sys.executable, "-I", "-S", "-c", attach], check=True)


# --- at work, of the kinds that came with tests/hang/healthy.py


def json_lines(seconds: float) -> None:
    """A file of records is read and written again, as a tokenizer's cache."""
    goes_on, path = _until(seconds), _own("records")
    rows = [{"id": n, "text": "word " * 40} for n in range(400)]
    while goes_on():
        with open(path, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        with open(path) as file:
            rows = [json.loads(line) for line in file]
    os.unlink(path)


def matched(seconds: float) -> None:
    """A regular expression over a text, in one thread; no IO at all."""
    goes_on, text = _until(seconds), "ab1 " * 20000
    while goes_on():
        re.sub(r"([a-z]+)(\d)", r"\2\1", text)


def generated(seconds: float) -> None:
    """Rank 0 writes samples with its model, word by word; the others wait."""
    goes_on, layer, state = _until(seconds), torch.nn.GRUCell(64, 64), torch.zeros(1, 64)
    with torch.no_grad():
        while goes_on():
            state = layer(state, state)


def decomposed(seconds: float) -> None:
    """One call after the other into LAPACK, each some hundred milliseconds."""
    goes_on, matrix = _until(seconds), torch.randn(300, 300)
    while goes_on():
        torch.linalg.svd(matrix)


def threads_of_torch(seconds: float) -> None:
    """The main thread waits for a pool whose threads compute."""
    goes_on = _until(seconds)

    def part(_: int) -> float:
        return float(torch.randn(200, 200).matmul(torch.randn(200, 200)).sum())

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        while goes_on():
            list(pool.map(part, range(20)))


def scored(seconds: float) -> None:
    """A tool scores a text and is asked through its pipes, again and again."""
    line = "import sys\nfor row in sys.stdin: print(sum(map(ord, row)), flush=True)"
    goes_on = _until(seconds)
    with subprocess.Popen([sys.executable, "-I", "-S", "-u", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tool:
        assert tool.stdin is not None and tool.stdout is not None
        while goes_on():
            tool.stdin.write(b"some words\n" * 20)
            tool.stdin.flush()
            for _ in range(20):
                tool.stdout.readline()
            time.sleep(0.05)
        tool.stdin.close()


def walked(seconds: float) -> None:
    """A data set is indexed: names and sizes of many files, nothing read."""
    goes_on = _until(seconds)
    while goes_on():
        for folder, _, names in os.walk(os.path.dirname(os.__file__)):
            for name in names:
                os.stat(os.path.join(folder, name))
            if not goes_on():
                return


def shared(seconds: float) -> None:
    """Workers fill shared memory, and the rank copies from it."""
    goes_on, context = _until(seconds), multiprocessing.get_context("fork")
    there = mmap.mmap(-1, 4 << 20)

    def fill() -> None:
        while goes_on():
            there[:] = os.urandom(1) * (4 << 20)
            time.sleep(0.2)
        os._exit(0)

    worker = context.Process(target=fill)
    worker.start()
    while goes_on():
        bytes(there)
        time.sleep(0.1)
    worker.join()


def waits_for_work(seconds: float) -> None:
    """The rank sleeps in a wait while a child of a child computes."""
    line = f"import time; until = time.monotonic() + {seconds}\nwhile time.monotonic() < until: sum(range(50000))"
    subprocess.run(["sh", "-c", f"{sys.executable} -I -S -c '{line}' & wait"], check=True)


def throttled(seconds: float) -> None:
    """An upload that a limit slows down: some kilobytes, then a rest of most of a second."""
    goes_on, path = _until(seconds), _own("throttled")
    with open(path, "wb") as file:
        while goes_on():
            file.write(os.urandom(64 << 10))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.8)
    os.unlink(path)


def written_by_thread(seconds: float) -> None:
    """A checkpoint is written by a thread, and the main thread joins it."""

    def write() -> None:
        goes_on, path = _until(seconds), _own("thread")
        while goes_on():
            torch.save(torch.randn(512, 512), path)
        os.unlink(path)

    writer = threading.Thread(target=write)
    writer.start()
    writer.join()


def counted(seconds: float) -> None:
    """A vocabulary is counted by a pool of processes that are given pieces of text."""
    goes_on, text = _until(seconds), "some words of a text " * 4000
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        while goes_on():
            pool.submit(_words_of, text).result()


def _words_of(text: str) -> int:
    return len(set(text.split()))


# --- at rest, until another process has done its part


def _server(seconds: float) -> int:
    """Takes a question, computes elsewhere for a while, and answers."""
    return _outside(f"""
import socket, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    there, _ = server.accept()
    there.recv(1 << 16)
    time.sleep({seconds})
    there.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nyes")
    there.close()
""")


def answered(seconds: float) -> None:
    """One rank asks a server to generate, as for a reward, and has no limit of its own."""
    urllib.request.urlopen(f"http://127.0.0.1:{_server(seconds)}/").read()


def answered_in_time(seconds: float) -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{_server(seconds)}/", timeout=seconds + 30).read()


def awaited(seconds: float) -> None:
    """A command waits for another job, as `sbatch --wait` does."""
    line = (
        f"import socket; there = socket.create_connection(('127.0.0.1', {_server(seconds)})); there.send(b'wait'); there.recv(1)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", line], check=True)


def piped(seconds: float) -> None:
    """Reads what such a command prints."""
    line = f"import socket; there = socket.create_connection(('127.0.0.1', {_server(seconds)})); there.send(b'ask'); print(there.recv(99))"
    subprocess.run([sys.executable, "-I", "-S", "-c", line], check=True, stdout=subprocess.PIPE)


def judged(seconds: float) -> None:
    """Threads ask a server for a judgement of each answer, and the rank waits for them."""
    ports = [_server(seconds), _server(seconds / 2)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda port: urllib.request.urlopen(f"http://127.0.0.1:{port}/").read(), ports))


def _lock(seconds: float, name: str, take: str) -> None:
    path = _own(name)
    hold = f"import fcntl, time; f = open({path!r}, 'w'); fcntl.{take}(f, 2); print(1, flush=True); time.sleep({seconds})"
    argv = ["setsid", "--fork", sys.executable, "-I", "-S", "-c", hold]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.read(1)
        with open(path, "w") as file:
            getattr(fcntl, take)(file, fcntl.LOCK_EX)


def their_lock(seconds: float) -> None:
    """Another job prepares the data set under a lock."""
    _lock(seconds, "prepared", "flock")


def record_of_others(seconds: float) -> None:
    _lock(seconds, "recorded", "lockf")


AT_WORK: dict[str, Callable[[float], None]] = {
    "answered": answered, "answered-in-time": answered_in_time, "awaited": awaited, "piped": piped, "their-lock": their_lock,
    "record-of-others": record_of_others, "judged": judged,
    "memmap": memmap, "niced": niced, "thin": thin, "spawned-loader": spawned_loader, "tenth": tenth, "direct-read": direct_read,
    "spliced": spliced, "dynamo": dynamo, "json-lines": json_lines, "matched": matched, "generated": generated,
    "decomposed": decomposed, "threads-of-torch": threads_of_torch, "scored": scored, "walked": walked, "shared": shared,
    "waits-for-work": waits_for_work, "throttled": throttled, "written-by-thread": written_by_thread, "counted": counted,
}  # fmt: skip
STILL: dict[str, Callable[[float], None]] = {
    "resolver": resolver, "stopped-worker": stopped_worker, "nested-pool": nested_pool, "import-lock": import_lock,
    "undrained": undrained, "full-child": full_child, "forked-lock": forked_lock, "asks-somebody": asks_somebody,
    "tracker": tracker, "backoff": backoff, "yields": yields, "debugger": debugger,
}  # fmt: skip
