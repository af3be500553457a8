"""When is a named rank reason enough to stop the ranks unasked? The states are measured: what each wait looks like to the kernel."""

from __future__ import annotations

import pytest

from ftslurm.model.collectives import ProcessState, RankView
from ftslurm.model.plain import from_plain, to_plain
from ftslurm.policies.hang.stall_watch import NOBODY, doubt, waits_beyond
from ftslurm.policies.hang.whohangs import who_hangs
from tests.policies.hang.test_whohangs import rank, waiting


def late(**more: object) -> tuple[RankView, ...]:
    """Rank 0 does something else, and the others wait for it."""
    return (rank(0, **more), waiting(1), waiting(2), waiting(3))


def doubt_of(*views: RankView) -> str:
    return doubt(who_hangs(views), views)


# Linux 6.18: recv, recv with a limit, accept, epoll, a pipe, a FIFO, wait4, flock, fcntl; Linux 3.10: recv, poll, a pipe, flock.
BEYOND = (
    "wait_woken", "poll_schedule_timeout.constprop.0", "inet_csk_accept", "do_epoll_wait", "anon_pipe_read", "wait_for_partner",
    "do_wait", "locks_lock_inode_wait", "fcntl_setlk", "sk_wait_data", "poll_schedule_timeout", "pipe_wait", "flock_lock_file_wait",
    "ptrace_stop",
)  # fmt: skip


@pytest.mark.parametrize("wchan", BEYOND)
def test_who_waits_for_another_process_may_still_get_it(wchan: str) -> None:
    assert "rank 0 waits for another process" in doubt_of(*late(wchan=wchan))


@pytest.mark.parametrize("wchan", ["futex_do_wait", "futex_wait_queue_me", "hrtimer_nanosleep", "do_sigtimedwait.isra.0", ""])
def test_a_lock_within_the_program_a_sleep_and_a_signal_that_does_not_come_are_proofs(wchan: str) -> None:
    assert not doubt_of(*late(wchan=wchan))


def test_of_a_thread_that_it_waits_for_the_same_holds() -> None:
    assert "another process" in doubt_of(*late(wchan="futex_do_wait", beside=("futex_do_wait", "wait_woken")))
    assert not doubt_of(*late(wchan="futex_do_wait", beside=("do_epoll_wait", "anon_pipe_read"))), (
        "a helper sleeps there all its life"
    )
    assert not doubt_of(*late(wchan="hrtimer_nanosleep", beside=("wait_woken",))), "it does not wait for a thread"


def test_a_data_loader_is_waited_for_in_steps_of_five_seconds() -> None:
    assert not doubt_of(*late(wchan="poll_schedule_timeout", main_fresh=True, children=2, wakes_s=0.25))


def test_no_signal_ends_a_wait_for_storage() -> None:
    assert "storage" in doubt_of(*late(process=ProcessState.DISK, wchan="rpc_wait_bit_killable"))


def test_who_wakes_up_again_and_again_proves_nothing() -> None:
    """On a busy machine a loop that copies every 0.1 s shows neither work nor the even rhythm of polling: seen in a healthy job."""
    assert "rank 0 wakes up" in doubt_of(*late(polls_s=10.0))
    assert "rank 0 wakes up" in doubt_of(*late(wchan="hrtimer_nanosleep", main_fresh=True, children=1, wakes_s=7.3))
    assert "rank 0 wakes up" in doubt_of(*late(wchan="futex_do_wait", beside_wakes_s=7.3)), "a thread trains, or is waited for"
    assert not doubt_of(*late(wchan="hrtimer_nanosleep", wakes_s=0.0, beside_wakes_s=7.3))
    assert not doubt_of(*late(wchan="futex_do_wait", gil_held=True, wakes_s=180.0)), "it tries to get the interpreter lock"


def test_a_stopped_rank_is_a_proof_unless_a_debugger_holds_it() -> None:
    stopped = {"process": ProcessState.STOPPED, "stack_inside": False}
    assert not doubt_of(*late(**stopped, wchan="do_signal_stop"))
    assert doubt_of(*late(**stopped, wchan="ptrace_stop"))


def test_a_large_collective_over_a_slow_network_is_no_hang() -> None:
    all_in = [waiting(number) for number in range(4)]
    assert not doubt_of(*all_in)
    assert doubt_of(*all_in[:3], waiting(3, io_bytes_s=2e6)) == "data still moves between the ranks"


def test_where_nobody_is_named_nothing_is_proven() -> None:
    assert doubt(None, ()) == NOBODY
    assert doubt_of(*(rank(number) for number in range(4))) == NOBODY


def test_what_it_is_judged_by_comes_over_the_wire() -> None:
    view = rank(0, wchan="futex_do_wait", beside=("wait_woken",))
    assert waits_beyond(from_plain(RankView, to_plain(view)))
