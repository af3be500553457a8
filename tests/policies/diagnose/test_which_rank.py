"""Of several ranks that failed: whose words tell the cause."""

from __future__ import annotations

from ftslurm.model.verdict import ErrorClass, RankEnd, Retriable
from tests.policies.diagnose.test_classify import end as ended
from tests.policies.diagnose.test_classify import verdict

VAGUE = "aborting job:\nFatal error in MPI_Init: Internal MPI error!, error stack:\n"
PEER = "RuntimeError: [../gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:1234\n"
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def end(rank: int, status: int = 0, text: str = "", signal: int = 15, at: float = 10.0) -> RankEnd:
    """It said so at once before its end."""
    return ended(rank, text, status, signal, at, at - 0.1)


def test_a_launcher_kills_those_that_did_not_crash() -> None:
    v = verdict(end(0, signal=9, at=9.9), end(1, signal=11, at=10.0), end(2, signal=11, at=10.1))
    assert v.signature == "SIGSEGV"
    aborts = verdict(end(0, signal=9, at=9.9), end(1, signal=6, at=10.0))
    assert aborts.signature == "SIGKILL", "one that waits for the killed one aborts"


def test_a_crash_after_another_s_failure_is_held_against_nobody() -> None:
    crash = end(0, signal=11, text="[n1:29212] Signal: Segmentation fault (11)\n", at=10.3)
    v = verdict(crash, end(1, 17, "*** MPI_ERR_INTERN: internal error\n", at=10.0))
    assert not v.suspects and "MPI_ERR_INTERN" in v.evidence[0]


def test_who_has_lost_a_peer_gives_way_to_that_peer_s_own_words() -> None:
    v = verdict(end(0, 1, PEER, at=9.9), end(1, 1, OOM, at=10.0))
    assert v.error_class is ErrorClass.OOM and v.evidence[0].startswith("rank 1 ")


def test_who_cleans_up_behind_a_process_is_no_cause() -> None:
    cleaner = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.10/multiprocessing/resource_tracker.py", line 209, in main\n'
        "    cache[rtype].remove(name)\nKeyError: '/loky-1-x'\n"
    )
    v = verdict(end(0, 1, cleaner, at=9.9), end(1, 1, OOM, at=10.0))
    assert v.error_class is ErrorClass.OOM and v.retriable is Retriable.NO


MESHES = "ERROR: the number of meshes is not that of the processes\n"
RESET = (
    "n2:9 [0] misc/socket.cc:30 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.1<5> failed : Connection reset by peer\n"
)
PANIC = "thread 'main' panicked at ring.rs:{0}:9:\n{1}\n"


def test_who_failed_before_and_says_of_what_is_heard_before_what_is_known_of_others() -> None:
    """Though no pattern knows its words, and though it exited as the others did."""
    v = verdict(end(0, 1, MESHES, at=9.0), end(1, 1, RESET, at=10.0), end(2, 1, RESET, at=10.1))
    assert "number of meshes" in v.evidence[0] and v.error_class is ErrorClass.USER_CODE
    later = verdict(end(0, 1, MESHES, at=20.0), end(1, 1, RESET, at=10.0), end(2, 1, RESET, at=10.1))
    assert "reset by peer" in later.evidence[0], "who speaks after the others may have reacted to them"


def test_a_crash_gives_way_to_words_of_the_same_moment() -> None:
    crash = end(0, signal=11, text="Caught signal 11 (Segmentation fault: address not mapped to object at address 0x9)\n", at=9.8)
    v = verdict(crash, end(1, signal=6, text="address.c:1052 Assertion `version == 2' failed: addr version 9\n", at=10.0))
    assert "addr version 9" in v.evidence[0]
