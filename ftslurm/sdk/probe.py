"""The probe: what a rank's communication does, written into the words 256 to 511 of its shared page (see page.py).

It runs inside the training process and needs no change to the program. `arm()` is called when the interpreter starts;
from then on nothing happens until the program itself imports torch.distributed, or mpi4py. FTSLURM_WATCH chooses how much:

L1: one daemon thread, ten times a second: that it lives (so the interpreter lock can be had), that the main thread's
    Python code runs, and per process group how many collectives were entered and completed, from torch's flight recorder.
    As soon as there is a group, torch's own worker server listens on `<page>.sock`; it answers while the lock is held.
    A collective costs nothing.
L2: the methods of ProcessGroup and Work are wrapped as well: exact words on where the thread that trains waits, and for whom.
    L1 does the same from the first point-to-point operation on CPU tensors on, for the recorder does not see those.

Of mpi4py nothing is counted: MAIN alone tells that the main thread has not come out of a call of C, and its stack, which the
agent takes then, that the call is one of MPI.

| words | name | what |
|---|---|---|
| 256 | PROBE_MAGIC | written last |
| 257 | LEVEL | 1 or 2, plus 256: the worker server listens, 1024: no group is left, 2048: mpi4py |
| 259 | BEATS | beats so far |
| 262 | GROUPS_SEEN | process groups so far, those without a slot too |
| 263 | PROGRESS | collectives entered and completed, over all groups: any change is progress |
| 264 to 267 | MAIN | a sem_t: its low 32 bits count how often the main thread's eval loop came by |
| 272 | IN | ns since when the thread that trains waits, 0: it does not |
| 273 | IN_WHAT | operation + 256 * (slot + 1) + 65536 if it is point-to-point |
| 274, 275 | IN_NUMBER, IN_PEER | number of the operation in its group; global rank it waits for, plus 1 |
| 277 | WAITS | how many there were |
| 279 | BESIDE | threads that wait, other than the one that trains |
| 280 to 283 | SCRATCH | the slot of the groups that have none |
| 284 | ASKED | questions to a store that were answered as the time before, by the thread that trains |
| 285 | TRAINER | the kernel's number of the thread that trains, in the process's own pid namespace; 0: not known yet |
| 288 to 383 | GROUPS | 24 groups of 4 words: NAME, RECORDED, ENTERED, ISSUED |
| 384 to 511 | RING | the last 128 waits |

The thread that trains is the one that made the process groups, mostly the main one. The rank's number (RANK in page.py) is
put right by the process group. No group is left when all were destroyed, or the program is over.
Of a group: NAME is CRC-32 of name and ranks + 2^32 * torch's id of it in this process + 2^63. RECORDED is the recorder's
last number + 2^32 * (last completed + 1), 0 if it does not count; point-to-point operations count there, too. ENTERED is
the number of collectives alone, plus 1. ISSUED is how many went through the wrappers + 2^32 * point-to-point operations.
Of a wait: (slot + 1, 31 for point-to-point) << 59, number mod 2048 << 48, time outside since the last wait << 24, time in
it, both in units of 2.048 us and at most 34 s. `<page>.groups` tells of each group its slot, key, name and ranks.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from binascii import crc32
from time import monotonic_ns, sleep

TYPE_CHECKING = False  # typing.TYPE_CHECKING; every Python process of a rank imports this, and typing costs more than all of it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PAGE_VARIABLE, WATCH_VARIABLE, CLAIM_VARIABLE = "FTSLURM_PAGE", "FTSLURM_WATCH", "FTSLURM_CLAIM"
MODULE = "torch.distributed.distributed_c10d"
CALLS_MODULE = "torch.distributed.rpc.api"
MPI_MODULE = "mpi4py.MPI"
LEVELS = {"L1": 1, "L2": 2}
PERIOD_S = 0.1
END_WAIT_S = 2.0
SOCKET_SUFFIX, GROUPS_SUFFIX = ".sock", ".groups"
SOCKET_PATH_MAX = 107  # sun_path in unix(7)
GROUPS_BYTES_MAX = 4 << 20

PROBE, PROBE_END = 256, 512
PROBE_MAGIC, LEVEL, BEATS, GROUPS_SEEN, PROGRESS = 256, 257, 259, 262, 263
MAIN = 264
IN, IN_WHAT, IN_NUMBER, IN_PEER, _, WAITS, _, BESIDE = range(272, 280)
SCRATCH = 280
ASKED, TRAINER = 284, 285
GROUPS, GROUP_COUNT, GROUP_WORDS = 288, 24, 4
NAME, RECORDED, ENTERED, ISSUED = range(4)
RING, RING_COUNT = 384, 128

MAGIC_NUMBER = 0x3145424F52505446
SERVES, LEFT, MPI = 256, 1024, 2048
DIRECT = 1 << 16  # in IN_WHAT
LOW = (1 << 32) - 1
UNIT_SHIFT, UNITS_MAX = 11, (1 << 24) - 1
NUMBERS = 2048
RANK = 6  # of the page (page.py)
OTHERS_MAX = 8  # as many waits of another thread, and none of the trainer's, make it the trainer
WORKS_MAX = 4096  # operations that nobody has waited for yet
PR_SET_PTRACER = 0x59616D61
PR_SET_NAME = 15
THREAD_NAME = b"ftslurm_probe"  # 15 bytes at most

COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "barrier",
)  # fmt: skip
DIRECTS = ("send", "recv", "recv_anysource", "monitored_barrier")
# Who is in it waits for ranks that nothing names.
MEETINGS = ("init_process_group", "new_group", "store_wait", "store_get", "store_poll")
QUESTIONS = ("check", "num_keys", "add", "get", "multi_get", "compare_set")  # asked in a loop until the answer changes
ANSWERS_MAX, TEXT_MAX = 64, 512
CALL = "rpc_sync"  # who is in it waits for another rank to serve it, whatever that one's own thread does meanwhile
OPERATIONS = ("", *COLLECTIVES, *DIRECTS, *MEETINGS, CALL)  # an operation's number is its place here; append only

_words: Any = None  # the page; None: nothing is written, as in a forked child
_probe: _Probe | None = None
_trainer = 0  # ident of the thread whose waits are the rank's; 0: none has waited yet
_answers: dict[tuple[str, str], object] = {}  # question to a store -> the last answer
_beside: set[int] = set()  # threads that wait beside the trainer, as in an asynchronous checkpoint
_others = (0, 0, 0)  # a thread that is not the trainer, how often it has waited, and WAITS since it did
_at: dict[int, int] = {}  # id(ProcessGroup) -> first word of its slot
_works: dict[int, tuple[int, int, int]] = {}  # id(Work) -> IN_WHAT, IN_NUMBER, IN_PEER


def _harmless(function: Callable[..., None]) -> Callable[..., None]:
    """It never raises: what goes wrong in it is nothing to the program."""

    def call(*given: Any) -> None:
        try:
            function(*given)
        except Exception:
            pass

    return call


# --- beginning


@_harmless
def arm() -> None:
    """Begin as soon as the program imports torch.distributed. For sitecustomize."""
    if os.environ.get(WATCH_VARIABLE) in LEVELS and os.environ.get(PAGE_VARIABLE) and _probe is None:
        if MODULE in sys.modules:
            start()
        else:
            sys.meta_path.insert(0, _Finder(MODULE, lambda _: start()))
        sys.meta_path.insert(0, _Finder(MPI_MODULE, _start_for_mpi))


@_harmless
def _start_for_mpi(module: Any) -> None:
    """mpi4py.MPI has been imported, which begins MPI as well unless the program said no."""
    if module.Is_initialized() and module.COMM_WORLD.Get_size() > 1:
        _come_late(int(module.COMM_WORLD.Get_rank()))
        if _words is not None:
            _words[LEVEL] |= MPI


class _Finder:
    """Calls `then` once the module has been executed, and goes."""

    def __init__(self, module: str, then: Callable[[Any], object]) -> None:
        self._module, self._then = module, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._module:
            return None
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return None
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def start() -> bool:
    """Begin now, if this process is the rank. torch.distributed has been imported. Never raises. False: it does not run."""
    global _probe, _words
    try:
        level = LEVELS.get(os.environ.get(WATCH_VARIABLE, ""), 0)
        if _probe is not None and _words is not None:  # for MPI
            _probe.watch_torch()
            return True
        if not level or _probe is not None:
            return False
        if not _claim(os.environ):
            _wrap_meetings(("init_process_group",))
            return False
        return _begin(level)
    except Exception:
        _words = None
        return False


def _begin(level: int, even_in_a_child: bool = False) -> bool:
    global _probe, _words
    from ftslurm.sdk import client

    page = client.page(even_in_a_child)
    if page is None:
        return False
    _probe = _Probe(page.words, page.path, level)
    _words = page.words
    _probe.begin()
    return True


def _claim(env: Any) -> bool:
    """Is this process the rank, and not a loader worker or another child of it? RANK, else SLURM_PROCID, says whose it is.

    A launcher (torchrun) has no RANK, its children have. A child of a rank inherits the claim and keeps silent; one that
    makes process groups all the same is a rank, too (`_come_late`). A rank that has replaced itself by exec is the same.
    """
    whose, me = _whose(env), _process(os.getpid())
    if not whose or not env.get(PAGE_VARIABLE):
        return False
    told, _, holder = env.get(CLAIM_VARIABLE, "").partition("@")
    pid = holder.partition(".")[0]
    if told == whose and holder != me and pid.isdigit() and _process(int(pid)) == holder:
        return False
    env[CLAIM_VARIABLE] = f"{whose}@{me}"
    return True


def _whose(env: Any) -> str:
    """Empty if nobody says."""
    rank, task = env.get("RANK"), env.get("SLURM_PROCID")
    return f"R{rank}" if rank else f"S{task}" if task else ""


def _process(pid: int) -> str:
    """Its pid and start."""
    from ftslurm.sdk.page import start_ticks

    return f"{pid}.{start_ticks(pid)}"


def _come_late(rank: Any) -> None:
    """A process that a launcher, `multiprocessing` or a fork has made calls init_process_group: it is a rank of its own.

    rank: as the program gives it, None if it does not. Never raises.
    """
    global _probe, _words
    try:
        if _words is None:
            level = LEVELS.get(os.environ.get(WATCH_VARIABLE, ""), 0)
            if level and os.environ.get(PAGE_VARIABLE):
                os.environ[CLAIM_VARIABLE] = f"{_whose(os.environ) or 'S?'}@{_process(os.getpid())}"
                _begin(level, even_in_a_child=True)
        if _words is not None and isinstance(rank, int) and rank >= 0:
            _words[RANK] = rank + 1
    except Exception:
        _words = None


@_harmless
def _know_rank() -> None:
    """By the process group that has just been made."""
    if _words is not None:
        _words[RANK] = int(sys.modules[MODULE].get_rank()) + 1


class _Probe:
    """The beating thread and all that belongs to it."""

    def __init__(self, words: Any, path: str, level: int) -> None:
        self.words, self.path, self.level = words, path, level
        self.ending = False
        self._server: Any = None
        self._served = False
        self._recorders: list[Any] | None = None
        self._post: Callable[[], object] = _nothing
        self._laid: dict[int, Any] = {}  # id(ProcessGroup) -> a weak reference that frees its slot
        self._free = list(range(GROUPS, GROUPS + GROUP_COUNT * GROUP_WORDS, GROUP_WORDS))[::-1]
        self._ids: dict[int, int] = {}  # first word of a slot -> torch's id of the group
        self._peers: dict[int, dict[int, int]] = {}  # id(ProcessGroup) -> rank in it -> global rank
        self._lost = 0  # progress of groups that are gone
        self._watches_torch = False
        self._laying = allocate_lock()
        self._beating = allocate_lock()

    def begin(self) -> None:
        import atexit

        words = self.words
        words[LEVEL] = self.level
        self._truncate()
        self._prepare_post()
        _let_debuggers_in()
        words[PROBE_MAGIC] = MAGIC_NUMBER
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self.forked)
        if MODULE in sys.modules:
            self.watch_torch()
        start_new_thread(self._run, ())

    def watch_torch(self) -> None:
        """torch.distributed has been imported."""
        if self._watches_torch:
            return
        self._watches_torch = True
        _wrap(COLLECTIVES + DIRECTS if self.level > 1 else DIRECTS)
        _wrap_meetings()
        if CALLS_MODULE in sys.modules:
            _wrap_calls(sys.modules[CALLS_MODULE])
        else:
            sys.meta_path.insert(0, _Finder(CALLS_MODULE, _wrap_calls))

    def _truncate(self) -> None:
        """What an earlier process has left beside the page."""
        for suffix in (SOCKET_SUFFIX, GROUPS_SUFFIX):
            _harmless(os.unlink)(self.path + suffix)

    def _prepare_post(self) -> None:
        """Let the main thread's eval loop count, without running Python: sem_post(3) is an int f(void *) that adds one."""
        try:
            import ctypes

            place = ctypes.c_char.from_buffer(self.words.cast("B"), MAIN * 8)
            post = ctypes.cast(ctypes.CDLL(None).sem_post, ctypes.c_void_p)
            add = ctypes.pythonapi.Py_AddPendingCall
            add.argtypes, add.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
            address = ctypes.addressof(place)
            self._post = lambda: add(post, address)
            self._kept = place
        except (AttributeError, OSError, ImportError, TypeError, ValueError):
            pass

    # --- in the beating thread

    def _run(self) -> None:
        failures = 0
        _name_thread()
        while _words is not None and not self.ending:
            try:
                with self._beating:
                    if self.ending:
                        return
                    self.beat()
                failures = 0
            except Exception:
                failures += 1
                if failures > 100:
                    return
            sleep(PERIOD_S)

    def beat(self) -> None:
        """At most 10 us with a group or two."""
        words = self.words
        words[BEATS] += 1
        self._post()
        module = sys.modules.get(MODULE)
        world = getattr(module, "_world", None)
        groups = getattr(world, "pg_map", None)
        if groups:
            words[LEVEL] &= ~LEFT
            if len(self._laid) > len(groups):
                self._drop(groups)
            self._count(groups)
            if not self._served and not self.ending:
                self._serve()
        elif self._laid and not words[LEVEL] & LEFT:  # destroyed; their numbers stay, as the last that is known of them
            words[LEVEL] |= LEFT
            words[PROGRESS] += 1

    def _drop(self, groups: Any) -> None:
        """Groups that were destroyed while somebody (DDP) still holds them: nobody counts for them any more."""
        there = {id(group) for group in list(groups)}
        with self._laying:
            for own in [each for each in self._laid if each not in there]:
                self._gone(own)

    def _count(self, groups: Any) -> None:
        words, known = self.words, _at
        status = self._recorded()
        total = self._lost
        for group in list(groups):
            at = known.get(id(group)) or self.lay(group)
            entered = _entered(group, words[at + ISSUED]) + 1
            words[at + ENTERED] = entered
            told = status.get(self._ids.get(at, -1), 0)
            if told:
                words[at + RECORDED] = told
            total += entered + (told >> 32)
        words[PROGRESS] = total

    def _recorded(self) -> dict[int, int]:
        """torch's id of a group -> RECORDED. Without the entries themselves: 2 us, where the whole dump takes 20 ms."""
        from json import loads

        if self._recorders is None:
            self._find_recorders()
        found: dict[int, int] = {}
        for dump in self._recorders or ():
            try:
                for key, told in loads(dump(includeCollectives=False)).get("pg_status", {}).items():
                    number, last, done = int(key), int(told["last_enqueued_collective"]), int(told["last_completed_collective"])
                    if number not in found or last > found[number] & LOW:
                        found[number] = max(last, 0) | max(done + 1, 1) << 32
            except Exception:
                self._recorders = [each for each in self._recorders or () if each is not dump]
        return found

    def _find_recorders(self) -> None:
        from torch._C import _distributed_c10d as native  # type: ignore[import-not-found, unused-ignore]

        names = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
        self._recorders = [getattr(native, name) for name in names if hasattr(native, name)]

    def _serve(self) -> None:
        """torch's HTTP server for its recorder and stacks; its threads need no interpreter lock to answer."""
        self._served = True
        path = self.path + SOCKET_SUFFIX
        from torch._C import _distributed_c10d as native  # type: ignore[import-not-found, unused-ignore]

        if not hasattr(native, "_WorkerServer") or len(os.fsencode(path)) > SOCKET_PATH_MAX or self.ending:
            return
        self._server = _quietly(lambda: native._WorkerServer(path))
        self.words[LEVEL] |= SERVES
        if self.ending:
            self._shut()

    # --- groups

    def lay(self, group: Any) -> int:
        """The first word of a slot for `group`, and before it for all that were made before it: torch's ids follow that order."""
        with self._laying:
            world = getattr(sys.modules.get(MODULE), "_world", None)
            for each in list(getattr(world, "pg_map", ())):
                if id(each) not in self._laid:
                    self._lay(each, getattr(world, "pg_group_ranks", {}).get(each) or {})
            if id(group) not in self._laid:
                return SCRATCH  # not made by torch.distributed, so without a name
            return _at[id(group)]

    def _lay(self, group: Any, ranks: dict[int, int]) -> None:
        from weakref import ref

        words, number = self.words, self.words[GROUPS_SEEN]
        at = self._free.pop() if self._free else SCRATCH
        name, members = str(group.group_name), _folded(sorted(ranks))
        self._peers[id(group)] = {local: rank for rank, local in ranks.items()}
        key = crc32(f"{name}:{members}".encode())
        if at != SCRATCH:
            self._ids[at] = number
            words[at + NAME] = words[at + RECORDED] = words[at + ENTERED] = 0
            words[at + ISSUED] = _entered(group, 0)  # wrappers that come late count on from there
        own = id(group)
        self._laid[own] = ref(group, lambda _: self._gone(own))
        _at[own] = at
        words[GROUPS_SEEN] = number + 1
        self._tell(at, name, members, key)
        if at != SCRATCH:
            words[at + NAME] = key | number << 32 | 1 << 63

    def count_from_now(self) -> None:
        """The wrappers of the collectives come only now, and count on from what there was."""
        for group in list(getattr(getattr(sys.modules.get(MODULE), "_world", None), "pg_map", ())):
            at = _place(group)
            if at != SCRATCH:
                issued = self.words[at + ISSUED]
                self.words[at + ISSUED] = issued & ~LOW | _entered(group, issued)

    @_harmless
    def _tell(self, at: int, name: str, members: str, key: int) -> None:
        from json import dumps

        slot = (at - GROUPS) // GROUP_WORDS if at != SCRATCH else -1
        line = dumps({"slot": slot, "key": key, "name": name[:200], "ranks": members})
        fd = os.open(self.path + GROUPS_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size + len(line) < GROUPS_BYTES_MAX:
                os.write(fd, line.encode() + b"\n")
        finally:
            os.close(fd)

    def _gone(self, own: int) -> None:
        """A group was destroyed: its slot is for the next one. At the end the interpreter destroys them all: they are kept."""
        if self.ending:
            return
        self._laid.pop(own, None)
        self._peers.pop(own, None)
        at = _at.pop(own, SCRATCH)
        if at != SCRATCH and _words is not None:
            words = self.words
            self._lost += words[at + ENTERED] + words[at + RECORDED] // (1 << 32)
            words[at + NAME] = 0
            self._ids.pop(at, None)
            self._free.append(at)

    def peer(self, group: Any, local: Any) -> int:
        """IN_PEER for rank `local` of the group."""
        return self._peers.get(id(group), {}).get(local, -1) + 1

    # --- the end

    def finish(self) -> None:
        """At exit. A server that still runs then ends the process by std::terminate, with status 134 in place of its own."""
        if _words is None:  # a forked child
            return
        self.ending = True
        # From here on the beating thread stays out of torch: the interpreter ends threads of its own accord, and one that
        # waits for its lock inside C++ takes the whole process along (std::terminate).
        self._beating.acquire(True, END_WAIT_S)
        try:
            self.beat()  # the last words
            self.words[LEVEL] |= LEFT
        except Exception:
            pass
        self._shut()

    @_harmless
    def _shut(self) -> None:
        if server := self._let_go():
            _quietly(server.shutdown)

    def _let_go(self) -> Any:
        """The server, which nobody may ever destroy: shut down or not, its destructor may end the process by std::terminate."""
        server, self._server = self._server, None
        if server is not None:
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        return server

    def forked(self) -> None:
        """A forked child writes nothing. The server's threads are not in it, so its object must never be destroyed there."""
        global _words, _trainer
        _words, _trainer = None, 0
        _at.clear()
        _works.clear()
        _answers.clear()
        _beside.clear()
        self.ending = True
        _harmless(self._let_go)()


def _nothing() -> None:
    pass


def _entered(group: Any, issued: int) -> int:
    """Collectives so far: gloo counts point-to-point operations in the same sequence, so those come off."""
    return max(_sequence(group) - (issued >> 32), 0)


def _folded(ranks: list[int]) -> str:
    """`0-14:2` if the steps are equal, else `0,3,4`."""
    if len(ranks) < 3:
        return ",".join(map(str, ranks))
    step = ranks[1] - ranks[0]
    if ranks != list(range(ranks[0], ranks[-1] + 1, step)):
        return ",".join(map(str, ranks))
    return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")


def _quietly(act: Callable[[], Any]) -> Any:
    """Without the lines that torch prints about its server: the program's output is the user's. (c10's level of logging.)"""
    try:
        import ctypes

        folder = os.path.dirname(sys.modules["torch"].__file__ or "")  # noqa: PTH120
        level = ctypes.c_int.in_dll(ctypes.CDLL(os.path.join(folder, "lib", "libc10.so")), "FLAGS_caffe2_log_level")  # noqa: PTH118
    except Exception:
        return act()
    before = level.value
    level.value = max(before, 2)  # errors only
    try:
        return act()
    finally:
        level.value = before


@_harmless
def _name_thread() -> None:
    """What is done for ftrun in this thread is no work of the rank: the agent takes it off by the name (see prctl(2))."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_NAME, THREAD_NAME, 0, 0, 0)


@_harmless
def _let_debuggers_in() -> None:
    """Where Yama lets only ancestors look (ptrace_scope 1), let the agent's py-spy, which is none, look at the stack."""
    with open("/proc/sys/kernel/yama/ptrace_scope") as file:
        if file.read().strip() != "1":
            return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


# --- wrappers


def _wrap(names: tuple[str, ...]) -> None:
    """Put wrappers around these methods of ProcessGroup; with a collective among them, around those of Work as well."""
    from torch._C import _distributed_c10d as native  # type: ignore[import-not-found, unused-ignore]

    group, work = native.ProcessGroup, native.Work
    for name in names:
        make = _issuing if name in COLLECTIVES else _blocking if name == "monitored_barrier" else _issuing_direct
        _replace(group, name, make, OPERATIONS.index(name))
    if set(names) & set(COLLECTIVES):
        for name in ("wait", "synchronize"):
            _replace(work, name, _waiting)


def _replace(place: Any, name: str, make: Callable[..., Any], *told: object) -> None:
    """Put what `make` makes of a function in its place, once. make: is given the function, and `told`."""
    own = getattr(place, name, None)
    if own is not None and not hasattr(own, "_ftslurm"):
        wrapper = make(own, *told)
        wrapper.__name__ = wrapper.__qualname__ = getattr(own, "__name__", "operation")
        wrapper.__doc__ = getattr(own, "__doc__", None)
        wrapper._ftslurm = own
        setattr(place, name, wrapper)


def _wrap_meetings(names: tuple[str, ...] = MEETINGS) -> None:
    """Where ranks wait for each other before there is a group, or to make one."""
    from torch._C import _distributed_c10d as native  # type: ignore[import-not-found, unused-ignore]

    module, store = sys.modules.get(MODULE), getattr(native, "Store", None)
    for place, name, method in (
        (module, "init_process_group", "init_process_group"), (module, "new_group", "new_group"),
        (store, "store_wait", "wait"), (store, "store_get", "get"),
    ):  # fmt: skip
        if name in names:
            _replace(place, method, _meeting, OPERATIONS.index(name), method if place is store else "")
    for method in QUESTIONS if "store_poll" in names else ():
        _replace(store, method, _asking, method)


@_harmless
def _wrap_calls(module: Any) -> None:
    """torch.distributed.rpc.api, before its names go on to others."""
    _replace(module, CALL, _calling, module)


def _calling(own: Any, module: Any) -> Any:
    operation = OPERATIONS.index(CALL)

    def call(to: Any, *args: Any, **kwargs: Any) -> Any:
        words = _words
        if words is None or words[IN] or not _trains(get_ident()):
            return own(to, *args, **kwargs)
        try:
            peer = int(module._to_worker_info(to).id) + 1
        except Exception:
            peer = 0
        return _within(words, operation | DIRECT, peer, own, (to, *args), kwargs)

    call.__module__, call.__wrapped__ = own.__module__, own  # type: ignore[attr-defined]
    return call


def _within(words: Any, what: int, peer: int, call: Any, args: Any, kwargs: Any) -> Any:
    """Make the call in which the thread that trains waits, and tell so."""
    words[IN_WHAT], words[IN_NUMBER], words[IN_PEER] = what, 0, peer
    words[IN] = monotonic_ns()
    try:
        return call(*args, **kwargs)
    finally:
        words[IN] = 0


def _asking(function: Any, name: str) -> Any:
    """Who asks the same again and again, and gets the same answer, waits for somebody to change it."""
    waits = name == "wait"  # to come back is all its answer

    def ask(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = function(*args, **kwargs)
        except Exception as error:
            _answered(name, args, type(error))
            raise
        if not waits:
            _answered(name, args, answer)
        return answer

    return ask


@_harmless
def _answered(name: str, args: Any, answer: Any) -> None:
    words = _words
    if words is None or not _speaks(get_ident()):
        return
    question = name, str(args[1:])[:TEXT_MAX]
    if isinstance(answer, (bytes, list)):
        answer = crc32(repr(answer).encode())
    if _answers.get(question) == answer and question in _answers:
        words[ASKED] += 1
        return
    if len(_answers) >= ANSWERS_MAX:
        _answers.clear()
    _answers[question] = answer


def _speaks(ident: int) -> bool:
    """Is it the thread that trains, or one that the thread that trains waits for the end of?"""
    threading = sys.modules.get("threading")
    trainer = _trainer or (threading.main_thread().ident if threading else ident)
    if ident == trainer:
        return True
    frame = sys._current_frames().get(trainer)
    place = (frame.f_globals.get("__name__"), frame.f_code.co_name) if frame is not None else None
    return place in (("threading", "join"), ("threading", "_wait_for_tstate_lock"))


def _meeting(own: Any, operation: int, question: str) -> Any:
    """question: of a store; empty for none."""
    begins = OPERATIONS[operation] == "init_process_group"
    function = _asking(own, question) if question else own

    def meet(*args: Any, **kwargs: Any) -> Any:
        global _trainer
        if begins:
            _come_late(kwargs.get("rank"))
            _trainer = get_ident()
            _tell_trainer()
        words = _words
        if words is None or words[IN] or not _trains(get_ident()):
            return function(*args, **kwargs)
        try:
            return _within(words, operation, 0, function, args, kwargs)
        finally:
            if begins:
                _know_rank()

    meet.__module__, meet.__wrapped__ = getattr(own, "__module__", None), own  # type: ignore[assignment, attr-defined]
    return meet


def _place(group: Any) -> int:
    try:
        return _probe.lay(group) if _probe is not None else SCRATCH
    except Exception:
        return SCRATCH


def _what(operation: int, at: int) -> int:
    return operation | ((at - GROUPS) // GROUP_WORDS + 1) << 8 if at != SCRATCH else operation


def _issuing(method: Any, operation: int) -> Any:
    places, works = _at, _works
    whats = {at: _what(operation, at) for at in (SCRATCH, *range(GROUPS, GROUPS + GROUP_COUNT * GROUP_WORDS, GROUP_WORDS))}

    def issue(self: Any, *args: Any, **kwargs: Any) -> Any:
        words = _words
        if words is None:
            return method(self, *args, **kwargs)
        at = places.get(id(self)) or _place(self)
        number = words[at + 3] + 1
        words[at + 3] = number
        work = method(self, *args, **kwargs)
        if work is not None:
            if len(works) > WORKS_MAX:
                works.clear()
            works[id(work)] = (whats[at], number & LOW, 0)
        return work

    return issue


def _issuing_direct(method: Any, operation: int) -> Any:
    def issue(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _words is None:
            return method(self, *args, **kwargs)
        at = _at.get(id(self)) or _place(self)
        before = _sequence(self)
        work = method(self, *args, **kwargs)
        try:
            _count_direct(at, _sequence(self) - before)
            peer = args[1] if len(args) > 1 else kwargs.get("dstRank", kwargs.get("srcRank"))
            told = _probe.peer(self, peer) if _probe is not None and OPERATIONS[operation] != "recv_anysource" else 0
            _see_waits(args[0] if args else kwargs.get("tensors"))
            if len(_works) > WORKS_MAX:
                _works.clear()
            _works[id(work)] = (_what(operation, at) | DIRECT, 0, told)
        except Exception:
            pass
        return work

    return issue


def _see_waits(tensors: Any) -> None:
    """On the host a point-to-point operation is waited for, and the recorder does not see it: from now on as at L2."""
    probe = _probe
    if probe is not None and probe.level == 1 and tensors[0].device.type == "cpu":
        probe.level = 2
        probe.count_from_now()
        _wrap(COLLECTIVES)
        probe.words[LEVEL] = probe.words[LEVEL] & ~255 | 2


def _blocking(method: Any, operation: int) -> Any:
    """Of monitored_barrier, which is made of sends and receives and gives no Work."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        words = _words
        if words is None or not _trains(get_ident()):
            return method(self, *args, **kwargs)
        at = _at.get(id(self)) or _place(self)
        before = _sequence(self)
        try:
            return _within(words, _what(operation, at) | DIRECT, 0, method, (self, *args), kwargs)
        finally:
            _count_direct(at, _sequence(self) - before)

    return call


def _count_direct(at: int, count: int) -> None:
    if 0 < count < 1 << 20:
        _words[at + ISSUED] += count << 32


def _sequence(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:
        return 0


def _trains(ident: int) -> bool:
    """Is it the thread whose waits are the rank's? The one that made the process groups, or waits first; later one that
    waits again and again while the other does no more. Training in a thread is usual in notebooks, Ray and Lightning."""
    global _trainer, _others
    if ident == _trainer:
        return True
    waits = _words[WAITS]
    who, count, since = _others
    count = count + 1 if (who, since) == (ident, waits) else 1
    _others = (ident, count, waits)
    if _trainer and (count < OTHERS_MAX or _words[IN]):
        return False
    _trainer = ident
    _tell_trainer()
    return True


def _tell_trainer() -> None:
    """By itself."""
    if _words is not None:
        _words[TRAINER] = get_native_id()


def _wait_beside(me: int, method: Any, work: Any, args: Any, kwargs: Any) -> Any:
    """What it waits in the counters tell, not the words."""
    words = _words
    _beside.add(me)
    words[BESIDE] = len(_beside)
    try:
        return method(work, *args, **kwargs)
    finally:
        _beside.discard(me)
        words[BESIDE] = len(_beside)


def _waiting(method: Any) -> Any:
    works, now, unknown = _works, monotonic_ns, (0, 0, 0)
    left = 0  # when the last wait ended

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        words = _words
        what, number, peer = works.pop(id(self), unknown)
        if words is None:
            return method(self, *args, **kwargs)
        if (me := get_ident()) != _trainer and not _trains(me):
            return _wait_beside(me, method, self, args, kwargs)
        words[273] = what
        words[274] = number
        words[275] = peer
        begun = words[272] = now()
        try:
            return method(self, *args, **kwargs)
        finally:
            ended = now()
            words[272] = 0
            outside = begun - left >> 11 if left else 0
            stay = ended - begun
            left = ended
            count = words[277]
            slot = 31 if what > 65535 else what >> 8
            words[384 + (count & 127)] = (
                slot << 59 | (number & 2047) << 48 | (outside if outside < UNITS_MAX else UNITS_MAX) << 24
                | (stay >> 11 if stay >> 11 < UNITS_MAX else UNITS_MAX)
            )  # fmt: skip
            words[277] = count + 1

    return wait
