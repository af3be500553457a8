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


def test_a_rank_that_says_what_failed_counts_before_one_that_says_that_something_did() -> None:
    v = verdict(end(0, 1, VAGUE, at=9.9), end(1, 1, "PSM2 can't open hfi unit: -1 (err=23)\n", at=10.0))
    assert "hfi unit" in v.evidence[0] and v.evidence[0].startswith("rank 1 ")
    late = verdict(end(0, 1, VAGUE, at=9.9), end(1, 1, "PSM2 can't open hfi unit: -1 (err=23)\n", at=60.0))
    assert late.evidence[0].startswith("rank 0 "), "whatever came a minute later is another story"


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


def test_a_trace_that_was_cut_off_gives_way_to_what_others_say() -> None:
    torn = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 9, in run\n    model = wrap(model)\n'
    told = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLGATHER, Timeout(ms)=1800000) ran for 1804782 ms\n"
    v = verdict(end(0, 1, torn, at=10.1), end(1, signal=6, text=told, at=10.0))
    assert "Watchdog" in v.evidence[0]


def test_who_cleans_up_behind_a_process_is_no_cause() -> None:
    cleaner = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.10/multiprocessing/resource_tracker.py", line 209, in main\n'
        "    cache[rtype].remove(name)\nKeyError: '/loky-1-x'\n"
    )
    v = verdict(end(0, 1, cleaner, at=9.9), end(1, 1, OOM, at=10.0))
    assert v.error_class is ErrorClass.OOM and v.retriable is Retriable.NO
