"""Who hangs, told as ranks that stand still. Source: measured gloo jobs for what each state looks like; C4D for the levels."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import WireError
from ftslurm.model.collectives import (
    CulpritKind,
    CurrentCall,
    GroupView,
    Level,
    ProcessState,
    RankView,
    Socket,
    fold_ranks,
    unfold_ranks,
)
from ftslurm.model.plain import from_plain, to_plain
from ftslurm.policies.hang.whohangs import HangLimits, HeldVerdict, JobState, hold, judged, who_hangs
from tests.hang.simulated import missing_ranks, trial

WORLD = (0, 1, 2, 3)


def rank(number: int, entered: int = 5, completed: int | None = None, **more: object) -> RankView:
    """In the world group; completed: all that was entered."""
    world = GroupView("world", WORLD, entered, entered if completed is None else completed, operation="gloo:all_reduce")
    view = RankView(
        number, f"n{number // 2}", ProcessState.SLEEPING, "futex_wait", main_fresh=False, gil_held=False, cpu_percent=0.1,
        io_bytes_s=0.0, groups=(world,), probed=True,
    )  # fmt: skip
    return replace(view, **more)  # type: ignore[arg-type]


def waiting(number: int, **more: object) -> RankView:
    return rank(number, 6, 5, **more)


def ended(number: int, **more: object) -> RankView:
    return rank(number, process=ProcessState.EXITED, **more)


def told(*views: RankView) -> tuple[str, tuple[int, ...]]:
    found = who_hangs(views)
    return (found.kind.value, found.ranks) if found else ("", ())


# --- more groups than are watched


def test_an_innocent_rank_is_not_named_that_may_wait_where_nobody_looks() -> None:
    hidden = rank(2, hidden_groups=6, wchan="futex_wait")
    assert told(waiting(0), waiting(1), hidden, waiting(3)) == ("unknown", (2,))
    found = who_hangs([waiting(0), waiting(1), hidden, waiting(3)])
    assert found is not None and "may itself wait" in found.cause and not found.blamed
    stopped = replace(hidden, process=ProcessState.DISK)
    assert told(waiting(0), waiting(1), stopped, waiting(3)) == ("RankNonCommHang", (2,)), "it waits for its storage"


def test_a_stopped_rank_may_be_inside_a_collective_that_nobody_sees() -> None:
    stopped = replace(waiting(2), process=ProcessState.STOPPED, hidden_groups=6)
    assert told(waiting(0), waiting(1), stopped, waiting(3)) == ("RankCommHang", (2,)), "one is seen"
    assert told(rank(0), rank(1), rank(2, process=ProcessState.STOPPED, hidden_groups=6), rank(3)) == ("unknown", (2,))


# --- a rank outside


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"wchan": "hrtimer_nanosleep"}, "asleep in hrtimer_nanosleep"),
        ({"wchan": "hrtimer_nanosleep", "cpu_percent": 4.0}, "mostly asleep in hrtimer_nanosleep"),
        ({"wchan": "hrtimer_nanosleep", "cpu_percent": 6.0}, "it runs native code"),
        ({"main_fresh": True, "wchan": "futex_wait", "cpu_percent": 4.0}, "mostly asleep in futex_wait"),
        ({"wchan": "futex_wait", "cpu_percent": 80.0, "children": 3}, "it runs native code, or a process below it (3)"),
        ({"process": ProcessState.DISK, "wchan": "rpc_wait"}, "uninterruptible wait in rpc_wait (storage or driver)"),
        ({"gil_held": True}, "native code holds the interpreter lock (asleep)"),
        ({"gil_held": True, "cpu_percent": 99.0}, "native code holds the interpreter lock (computing)"),
        ({"main_fresh": True, "cpu_percent": 99.0}, "it runs Python code (an endless loop, or its own work)"),
        ({"main_fresh": True, "children": 2}, "it waits for a child process (data loader?)"),
        ({"cpu_percent": 99.0}, "it runs native code"),
        ({"process": ProcessState.EXITED}, "it has ended"),
    ],
)
def test_the_rank_that_has_not_entered_is_named_with_what_it_does(state: dict[str, object], words: str) -> None:
    found = who_hangs([waiting(0), waiting(1), rank(2, **state), waiting(3)])
    assert found is not None
    assert (found.kind, found.ranks, found.nodes, found.cause) == (CulpritKind.NON_COMM_HANG, (2,), ("n1",), words)
    assert found.operation == "gloo:all_reduce"
    assert found.evidence == ("rank 0-1,3 waits in gloo:all_reduce for rank 2",)
    assert found.blamed == (("n1",) if state.get("process") is ProcessState.DISK else ())


def test_a_rank_that_has_not_even_made_the_group_is_waited_for() -> None:
    assert told(waiting(0), waiting(1), waiting(2), rank(3, groups=())) == ("RankNonCommHang", (3,))


def test_a_member_that_nothing_is_known_of() -> None:
    assert told(waiting(0), waiting(1), waiting(2)) == ("unknown", (3,))


def test_of_those_that_wait_nowhere_one_with_a_probe_is_rather_it() -> None:
    blind = RankView(3, "n1", ProcessState.SLEEPING, "futex_wait")
    assert told(waiting(0), waiting(1), rank(2), blind) == ("RankNonCommHang", (2,))
    assert told(waiting(0), waiting(1), waiting(2), blind) == ("RankNonCommHang", (3,))


def test_a_rank_held_up_in_another_group_is_not_it() -> None:
    """A list of missing ranks names 2 and 3; 3 waits for 2 in a group of their own."""
    pair = [GroupView("pair", (2, 3), 7, 7), GroupView("pair", (2, 3), 8, 7)]
    two = rank(2, groups=(rank(2).groups[0], pair[0]))
    three = rank(3, groups=(rank(3).groups[0], pair[1]))
    assert told(waiting(0), waiting(1), two, three) == ("RankNonCommHang", (2,))


def test_an_asynchronous_operation_in_flight_is_no_wait_where_the_words_are_exact() -> None:
    late = rank(2, 5, 4, exact=True)
    inside = CurrentCall("allreduce", "world", 6, 9.0)
    others = [waiting(each, exact=True, inside=inside) for each in (0, 1, 3)]
    assert told(*others, late) == ("RankNonCommHang", (2,))


def test_ranks_that_cannot_tell_what_completed() -> None:
    views = [rank(each, 6 if each != 1 else 5) for each in WORLD]
    blind = [replace(view, groups=(replace(view.groups[0], completed=None),)) for view in views]
    assert told(*blind) == ("RankNonCommHang", (1,))


def test_point_to_point_waits_lead_to_the_stage_that_hangs() -> None:
    """A pipeline: 3 waits for 2, 2 for 1, 0 is through and waits in the collective."""
    direct = {3: 2, 2: 1}
    views = [rank(each, exact=True, inside=CurrentCall("recv", "world", 0, 9.0, peer, True)) for each, peer in direct.items()]
    assert told(waiting(0), rank(1, exact=True), *views) == ("RankNonCommHang", (1,))


# --- stopped


def test_a_stopped_rank_by_its_own_words_its_stack_or_its_counters() -> None:
    stopped = {"process": ProcessState.STOPPED}
    others = [waiting(0), waiting(1), waiting(3)]
    assert told(*others, waiting(2, inside=CurrentCall("allreduce", "world", 6), **stopped)) == ("RankCommHang", (2,))
    assert told(*others, rank(2, exact=True, **stopped)) == ("RankNonCommHang", (2,))
    assert told(*others, rank(2, stack_inside=True, **stopped)) == ("RankCommHang", (2,))
    assert told(*others, rank(2, **stopped)) == ("RankNonCommHang", (2,))
    assert told(*others, waiting(2, **stopped)) == ("RankCommHang", (2,))
    assert told(*others, RankView(2, "n1", ProcessState.STOPPED)) == ("unknown", (2,))


def test_with_a_stopped_rank_stands_the_command_that_lets_it_go_on() -> None:
    found = who_hangs([waiting(0), rank(2, exact=True, process=ProcessState.STOPPED, pid=4711)])
    assert found is not None and found.evidence == ("rank 2 is stopped outside communication",)
    assert found.helps == "kill -CONT 4711 on n1"


def test_counters_that_the_others_prove_old_are_no_evidence() -> None:
    old = rank(2, 3, 2, process=ProcessState.STOPPED)
    assert told(waiting(0), waiting(1), old, waiting(3)) == ("unknown", (2,))


def test_a_suspended_job_does_not_hang() -> None:
    found = who_hangs([waiting(each, process=ProcessState.STOPPED) for each in WORLD])
    assert found is not None and found.kind is CulpritKind.UNKNOWN and found.level is Level.INFO and "suspended" in found.cause


# --- inside


def sockets(*pairs: tuple[str, str, str]) -> tuple[Socket, ...]:
    return tuple(Socket(local, remote, trouble, 9 if trouble else 0) for local, remote, trouble in pairs)


def test_all_inside_and_one_rank_at_the_end_of_all_stuck_connections() -> None:
    views = [
        waiting(0, sockets=sockets(("10.0.0.1:1", "10.0.0.2:1", ""), ("10.0.0.1:3", "10.0.0.3:1", "retransmit"))),
        waiting(1, sockets=sockets(("10.0.0.2:1", "10.0.0.1:1", "unread"))),
        waiting(2, sockets=sockets(("10.0.0.3:1", "10.0.0.1:3", ""), ("10.0.0.3:4", "10.0.0.4:1", "retransmit"))),
        waiting(3, sockets=sockets(("10.0.0.4:1", "10.0.0.3:4", ""))),
    ]
    found = who_hangs(views)
    assert found is not None
    assert (found.kind, found.ranks, found.blamed) == (CulpritKind.COMM_HANG, (2,), ("n1",))
    assert len(found.evidence) == 2, "what is unread lies there for want of others"


def test_the_two_ends_of_one_stuck_connection() -> None:
    views = [
        waiting(0, sockets=sockets(("127.0.0.1:1", "127.0.0.1:2", "zero-window"))),
        waiting(1, sockets=sockets(("127.0.0.1:2", "127.0.0.1:1", ""))),
        waiting(2, sockets=sockets(("127.0.0.1:1", "127.0.0.1:2", ""))),  # the same address on another node
        waiting(3),
    ]
    assert told(*views) == ("RankCommHang", (0, 1))


def test_without_a_stuck_connection_all_members_are_named_and_nobody_is_blamed() -> None:
    found = who_hangs([waiting(each) for each in WORLD])
    assert found is not None
    assert (found.kind, found.ranks, found.blamed) == (CulpritKind.COMM_HANG, WORLD, ())
    assert "no connection stands out" in found.cause


def test_a_collective_that_completed_on_some() -> None:
    """The root of a broadcast is through, and waits in the next."""
    assert told(rank(0, 7, 6), waiting(1), waiting(2), waiting(3)) == ("RankCommHang", (1, 2, 3))


def test_a_device_that_has_not_begun_what_all_have_enqueued() -> None:
    views = [replace(view, groups=(replace(view.groups[0], started=5 if view.rank == 1 else 6),)) for view in map(waiting, WORLD)]
    found = who_hangs(views)
    assert found is not None and (found.kind, found.ranks, found.blamed) == (CulpritKind.NON_COMM_HANG, (1,), ("n0",))


def test_another_operation_at_the_same_place() -> None:
    def with_last(view: RankView, *names: str) -> RankView:
        return replace(view, groups=(replace(view.groups[0], operation=names[0], recent=names),))

    usual = [with_last(waiting(each), "all_reduce") for each in (0, 1, 3)]
    assert told(*usual, with_last(waiting(2), "broadcast")) == ("RankNonCommHang", (2,))
    assert told(*usual, with_last(rank(2, 7, 6), "broadcast", "all_reduce")) == ("RankNonCommHang", (2,)), "through at once"
    assert told(usual[0], with_last(waiting(1), "broadcast")) == ("unknown", (2, 3))


def test_collectives_in_different_order() -> None:
    def in_two(number: int, world: tuple[int, int], pair: tuple[int, int]) -> RankView:
        return rank(number, groups=(GroupView("world", (0, 1), *world), GroupView("pair", (0, 1), *pair)))

    found = who_hangs([in_two(0, (6, 5), (3, 3)), in_two(1, (5, 5), (4, 3))])
    assert found is not None and (found.kind, found.ranks) == (CulpritKind.NON_COMM_HANG, (0, 1))
    assert "different order" in found.cause


def test_two_that_wait_for_each_other_point_to_point() -> None:
    def direct(number: int, way: str) -> RankView:
        return rank(number, exact=True, inside=CurrentCall(way, "world", 0, 9.0, 1 - number, True))

    assert told(direct(0, "send"), direct(1, "recv")) == ("RankCommHang", (0, 1))
    assert told(direct(0, "recv"), direct(1, "recv")) == ("RankNonCommHang", (0, 1)), "nobody sends"


# --- ends


def test_ends() -> None:
    assert told(ended(0), ended(1), rank(2), ended(3)) == ("ExitHang", (2,))
    assert told(waiting(0), waiting(1), ended(2), waiting(3)) == ("RankNonCommHang", (2,)), "it left too early"
    assert told(ended(0), ended(1)) == ("", ())


# --- what cannot be told


def test_without_probes_only_what_the_kernel_says() -> None:
    views = [RankView(each, "n0", ProcessState.SLEEPING, "futex_wait") for each in (0, 1)]
    found = who_hangs(views)
    assert found is not None and (found.kind, found.ranks) == (CulpritKind.UNKNOWN, ())
    assert told(views[0], RankView(1, "n0", ProcessState.DISK, "rpc_wait")) == ("RankNonCommHang", (1,))
    assert told(*(rank(each) for each in WORLD)) == ("unknown", ())
    assert told() == ("", ())


# --- time


def test_a_verdict_counts_once_it_has_held_and_grows_to_an_error() -> None:
    limits = HangLimits()
    views = [waiting(each) for each in WORLD]
    held: HeldVerdict | None = None
    levels: dict[float, Level | None] = {}
    for tenth in range(0, 2000, 5):
        now = tenth / 10
        held = hold(held, who_hangs(views) if now >= 10 else None, now)
        found = judged(held, now, now, limits)
        levels[now] = found.level if found else None
    assert levels[10.0] is None and levels[10.5] is None
    assert levels[11.0] is Level.WARN and levels[179.5] is Level.WARN
    assert levels[180.0] is Level.ERROR, "18 identical verdicts, 10 s apart"


def test_another_verdict_begins_anew() -> None:
    first, second = who_hangs([waiting(0), rank(1)]), who_hangs([rank(0), waiting(1)])
    held = hold(hold(None, first, 0.0), first, 5.0)
    assert held is not None and held.since == 0.0
    held = hold(held, second, 6.0)
    assert held is not None and held.since == 6.0
    assert judged(held, 6.5, 60.0, HangLimits()) is None
    assert hold(held, None, 7.0) is None


def test_outside_communication_stays_a_warning_unless_the_machine_is_behind_it() -> None:
    limits = HangLimits(timeout_s=1.0, times=3)
    for state, level in (({}, Level.WARN), ({"process": ProcessState.DISK}, Level.ERROR)):
        held = hold(None, who_hangs([waiting(0), waiting(1), waiting(2), rank(3, **state)]), 0.0)
        found = judged(held, 100.0, 100.0, limits)
        assert found is not None and found.level is level
    held = hold(None, who_hangs([waiting(0), waiting(1), waiting(2), rank(3)]), 0.0)
    found = judged(held, 100.0, 100.0, limits, repeated={"n1"})
    assert found is not None and found.level is Level.ERROR and found.blamed == ("n1",)


@pytest.mark.parametrize(
    ("state", "busy"),
    [
        ({}, False),
        ({"io_bytes_s": 107.0}, False),
        ({"io_bytes_s": 1e6}, True),
        ({"cpu_percent": 61.0}, True),
        ({"process": ProcessState.RUNNING}, True),
        ({"process": ProcessState.STOPPED, "cpu_percent": 61.0}, False),
    ],
)
def test_work_in_the_ranks_waited_for_asks_for_the_long_limit(state: dict[str, object], busy: bool) -> None:
    views = [waiting(0, cpu_percent=99.0), rank(1, **state), waiting(2), waiting(3)]
    found = who_hangs(views)
    assert found is not None and JobState.of(views).is_busy is busy


def test_a_monitored_barrier_is_seen_by_who_waits_in_it() -> None:
    """Of sends and receives that no counter shows; who is not in it holds it up, be that rank 0 or another."""
    inside = CurrentCall("monitored_barrier", "world", 0, 20.0, None, True)
    here = [rank(number, inside=inside) for number in range(4)]
    assert told(rank(0), *here[1:]) == ("RankNonCommHang", (0,))
    assert told(here[0], rank(1), *here[2:]) == ("RankNonCommHang", (1,))
    assert told(here[0], here[1], waiting(2), rank(3)) == ("RankNonCommHang", (3,)), "and he waits in a collective for another"
    found = who_hangs(here)
    assert found is not None and (found.kind, found.operation) == (CulpritKind.COMM_HANG, "monitored_barrier")


def test_ranks_that_wait_in_a_store_for_whom_nothing_names() -> None:
    store = CurrentCall("store_wait", "", 0, 20.0)
    here = [rank(number, inside=store) for number in range(4)]
    assert told(rank(0), *here[1:]) == ("RankNonCommHang", (0,))
    assert told(rank(0, left=True), *here[1:])[0] == "unknown", "who has given up its groups does not come any more"
    assert told(*here) == ("unknown", ())


POLL = CurrentCall("store_poll", "", 0, 20.0)


def test_ranks_that_ask_a_store_wait_for_who_does_not() -> None:
    here = [rank(number, inside=POLL, polls_s=20.0) for number in range(4)]
    assert told(rank(0), *here[1:]) == ("RankNonCommHang", (0,))
    assert told(here[0], waiting(1), waiting(2), waiting(3)) == ("RankNonCommHang", (0,)), "for what nobody is left to bring"
    assert told(*here) == ("unknown", ())
    found = who_hangs([here[0], *(waiting(number) for number in (1, 2, 3))])
    assert found is not None and (found.operation, found.cause) == (
        "store_poll",
        "it waits for ranks that cannot arrive any more",
    )


def test_a_rank_that_does_not_answer_a_call() -> None:
    """Its own thread waits with all the others for the caller."""
    call = rank(1, inside=CurrentCall("rpc_sync", "", 0, 20.0, 2, True))
    views = [waiting(0), call, waiting(2, wchan="futex_wait"), waiting(3)]
    found = who_hangs(views)
    assert found is not None and (found.kind, found.ranks, found.operation) == (CulpritKind.NON_COMM_HANG, (2,), "rpc_sync")
    assert found.cause == "it does not answer a call: asleep in futex_wait" and found.evidence == ("rank 1 has called rank 2",)
    assert not JobState.of(views).is_busy and JobState.of([*views[:2], waiting(2, cpu_percent=80.0), views[3]]).is_busy
    further = rank(2, inside=CurrentCall("rpc_sync", "", 0, 20.0, 3, True))
    assert told(waiting(0), call, further, waiting(3)) == ("RankNonCommHang", (3,)), "the end of a chain of calls"
    assert told(rank(0), call, waiting(2), waiting(3)) == ("RankNonCommHang", (0,)), "a rank that waits nowhere comes first"
    back = rank(2, inside=CurrentCall("rpc_sync", "", 0, 20.0, 1, True))
    assert told(waiting(0), call, back, waiting(3)) == ("RankNonCommHang", (1, 2))


def test_ranks_that_look_for_a_file_wait_for_who_does_not() -> None:
    here = [rank(number, polls_s=20.0) for number in range(4)]
    found = who_hangs([rank(0), *here[1:]])
    assert found is not None and (found.kind, found.ranks) == (CulpritKind.NON_COMM_HANG, (0,))
    assert found.evidence == ("rank 1-3 waits in a loop that polls; rank 0 has not arrived",)
    assert told(rank(0), rank(1), rank(2), here[3]) == ("unknown", ()), "one that polls for what may be nobody's here"
    assert told(*here) == ("unknown", ())
    assert told(rank(0, probed=False), *here[1:]) == ("unknown", ()), "a driver and its workers"
    assert told(rank(0), here[1], waiting(2), waiting(3)) == ("RankNonCommHang", (0,)), (
        "of two that are waited for the one that does not poll"
    )


def test_a_rank_that_polls_for_something_outside_while_the_others_wait_for_it() -> None:
    licence = rank(0, polls_s=2.0, process=ProcessState.RUNNING)
    found = who_hangs([licence, *(waiting(number) for number in (1, 2, 3))])
    assert found is not None and (found.kind, found.ranks) == (CulpritKind.NON_COMM_HANG, (0,))
    assert found.cause == "it only polls, 2 times a second"
    assert not JobState.of([licence, waiting(1), waiting(2), waiting(3)]).is_busy
    working = replace(licence, polls_s=None)
    assert JobState.of([working, waiting(1), waiting(2), waiting(3)]).is_busy
    meets = [rank(number, inside=CurrentCall("new_group", "", 0, 20.0)) for number in (1, 2, 3)]
    assert told(licence, *meets) == ("RankNonCommHang", (0,))


def test_ranks_that_burn_their_cpu_in_a_call_of_mpi_wait() -> None:
    def in_mpi(number: int, call: str = "MPI_Allreduce") -> RankView:
        return rank(number, groups=(), process=ProcessState.RUNNING, inside=CurrentCall(call, "", 0, 20.0), cpu_percent=0.3)

    asleep = rank(1, groups=(), idle_s=20.0)
    views = [in_mpi(0), asleep, in_mpi(2)]
    found = who_hangs(views)
    assert found is not None and (found.kind, found.ranks, found.operation) == (CulpritKind.NON_COMM_HANG, (1,), "MPI_Allreduce")
    assert not JobState.of(views).is_busy and JobState.of(views).idle_s(20.0) == 20.0
    assert JobState.of([in_mpi(0), replace(asleep, process=ProcessState.RUNNING), in_mpi(2)]).is_busy, "it computes, or loops"
    unseen = replace(in_mpi(2), inside=None, hidden_groups=1, cpu_percent=90.0)
    assert told(in_mpi(0), asleep, unseen) == ("RankNonCommHang", (1,)) and JobState.of([in_mpi(0), asleep, unseen]).is_busy
    assert told(in_mpi(0), in_mpi(1), unseen) == ("unknown", (2,)), "nobody could look at its stack"
    found = who_hangs([in_mpi(0, "MPI_Recv"), in_mpi(1), in_mpi(2)])
    assert found is not None and (found.kind, found.ranks, found.blamed) == (CulpritKind.COMM_HANG, (0, 1, 2), ())
    assert found.cause.startswith("all ranks wait in MPI_Recv, MPI_Allreduce, and none makes progress")


def test_a_rank_that_has_given_up_its_groups_waits_for_nobody() -> None:
    """Whatever its last numbers say."""
    views = [rank(number, 6, 5, left=True) for number in range(4)]
    assert told(*views) == ("unknown", ()) and JobState.of(views).at_end
    assert told(*views[:3], waiting(3)) == ("RankCommHang", (3,)) and not JobState.of([*views[:3], waiting(3)]).at_end


def test_for_how_long_nobody_that_may_hold_up_the_others_has_worked() -> None:
    assert JobState.of([waiting(0, idle_s=1.0), rank(1, idle_s=50.0), rank(2, idle_s=None)]).idle_s(90.0) == 50.0
    assert (
        JobState.of([waiting(0, idle_s=1.0)]).idle_s(90.0) == 90.0 and JobState.of([rank(0, idle_s=200.0)]).idle_s(90.0) == 90.0
    )


# --- at scale


@pytest.mark.parametrize(
    ("shape", "count"), [((2, 2, 2), 60), ((4, 4, 4), 30), ((8, 4, 8), 8), ((8, 8, 16), 3)], ids=lambda value: str(value)
)
def test_simulated_jobs(shape: tuple[int, int, int], count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Tensor x pipeline x data parallel. Naming all missing ranks of each group would name many more than the culprit."""
    rng = random.Random(str(shape))
    longest, named = 0.0, []
    for _ in range(count):
        case = trial(rng, shape)
        began = time.perf_counter()
        found = who_hangs(case.views)
        longest = max(longest, time.perf_counter() - began)
        assert case.told_by(found), (case.kind, case.culprits, found)
        named.append(len(missing_ranks(case.views)))
    with capsys.disabled():
        print(
            f"\n  {len(case.views)} ranks: verdict in {longest * 1e3:.1f} ms at most, {max(named)} missing ranks at most", end=""
        )


def test_over_the_wire_nothing_is_lost() -> None:
    case = trial(random.Random(3), (2, 2, 2))
    back = [from_plain(RankView, json.loads(json.dumps(to_plain(view)))) for view in case.views]
    assert who_hangs(back) == who_hangs(case.views)
    full = replace(
        ended(2), sockets=sockets(("1.2.3.4:5", "6.7.8.9:10", "unread")), inside=CurrentCall("send", "g", 3, 1.5, 4, True),
        stack_inside=True, exact=True, pid=4711, children=3, polls_s=20.0,
    )  # fmt: skip
    assert from_plain(RankView, json.loads(json.dumps(to_plain(full)))) == full


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["running", "0-3", "n0"]),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.sampled_from(
        ["rank", "node", "process", "groups", "inside", "sockets", "key", "members", "entered", "operation", "group", "number"]), inner, max_size=6),
    max_leaves=12,
)  # fmt: skip


@given(anything, st.sampled_from(["groups", "inside", "sockets", "cpu_percent", "children", "wchan", "pid"]))
def test_whatever_comes_over_the_wire_is_checked(value: object, member: str) -> None:
    for record in (value, {"rank": 1, "node": "n0", "process": "running", member: value}):
        try:
            from_plain(RankView, record)
        except WireError:
            pass


@given(st.sets(st.integers(0, 300), max_size=40))
def test_ranks_as_text(ranks: set[int]) -> None:
    assert set(unfold_ranks(fold_ranks(ranks))) == ranks


def test_ranks_of_regular_groups_are_short() -> None:
    assert fold_ranks(range(1024)) == "0-1023"
    assert fold_ranks(range(3, 1024, 8)) == "3-1019:8"
    for hostile in ("0-99999999", "1-2:0", "x", "-4", ",", "1,,2"):
        with pytest.raises(WireError):
            unfold_ranks(hostile)
