"""Who was heard of last: what silence and broken connections come to, on a clock that is only a number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftslurm.model.events import AgentLost, NodeHeard, NodeSilent, ShimLost
from ftslurm.policies.lease import RETURN_S, NodeContact

SILENCE_S = 15.0


class World:
    """Ranks 0 and 1 on n1, rank 2 on n2, and an agent on n1."""

    def __init__(self) -> None:
        self.contact = NodeContact(SILENCE_S)
        self.now = 100.0
        for owner, node in ((0, "n1"), (1, "n1"), (2, "n2"), ("n1", "n1")):
            assert self.contact.record_connection(owner, node, self.now) == []

    def passes(self, seconds: float, speaking: tuple[int | str, ...] = ()) -> list[object]:
        """A second at a time, in each of which these are heard; all news of it."""
        news: list[object] = []
        until = self.now + seconds
        while self.now < until:
            self.now += min(1.0, until - self.now)
            for owner in speaking:
                news += self.contact.record_message(owner, self.now)
            if self.contact.wakes_at is not None and self.contact.wakes_at <= self.now:
                news += self.contact.due(self.now)
        return news


ALL: tuple[int | str, ...] = (0, 1, 2, "n1")


def test_who_speaks_is_no_news() -> None:
    assert World().passes(1000.0, ALL) == []


def test_a_node_is_silent_once_nobody_on_it_is_heard() -> None:
    world = World()
    assert world.passes(60.0, (0, 2)) == [], "one of its shims is enough"
    assert world.passes(60.0, ("n1", 2)) == [], "or its agent"
    assert world.passes(14.0, (2,)) == []
    assert world.passes(2.0, (2,)) == [NodeSilent("n1", 15.0)]
    assert world.passes(100.0, (2,)) == [], "it is said once"


def test_a_silent_node_that_is_heard_again_may_be_silent_again() -> None:
    world = World()
    world.passes(20.0, ("n1",))
    assert world.passes(1.0, (2, "n1")) == [NodeHeard("n2")]
    assert world.passes(16.0, ("n1",)) == [NodeSilent("n2", 15.0)]


def test_a_shim_that_calls_again_was_never_lost() -> None:
    world = World()
    world.contact.record_loss(0, "reset", world.now)
    assert world.passes(RETURN_S - 1.0, (1, 2, "n1")) == []
    assert world.contact.record_connection(0, "n1", world.now) == []
    assert world.passes(60.0, ALL) == []


def test_where_many_broke_at_once_nobody_is_lost_while_others_still_come_back() -> None:
    world = World()
    for rank in (0, 1, 2):
        world.contact.record_loss(rank, "it hung up", world.now)
    assert world.passes(RETURN_S - 1.0, ("n1",)) == []
    assert world.contact.record_connection(2, "n2", world.now) == []
    assert world.passes(RETURN_S - 1.0, (2, "n1")) == []
    assert world.contact.record_connection(1, "n1", world.now) == []
    assert world.passes(RETURN_S - 1.0, (1, 2, "n1")) == []
    assert world.passes(1.0, (1, 2, "n1")) == [ShimLost(0, "it hung up")]


def test_who_comes_back_again_and_again_hides_no_loss() -> None:
    world = World()
    world.contact.record_loss(0, "it hung up", world.now)
    lost: list[object] = []
    for _ in range(int(SILENCE_S)):
        world.contact.record_loss(2, "reset", world.now)
        assert world.contact.record_connection(2, "n2", world.now) == []
        lost += world.passes(1.0, (1, "n1"))
    assert lost == [ShimLost(0, "it hung up")]


def test_a_shim_that_does_not_call_again_is_lost_where_its_node_lives() -> None:
    world = World()
    world.contact.record_loss(0, "it hung up", world.now)
    assert world.passes(RETURN_S - 1.0, (1, 2, "n1")) == []
    assert world.passes(1.0, (1, 2, "n1")) == [ShimLost(0, "it hung up")]
    assert world.passes(60.0, (1, 2, "n1")) == []


def test_where_the_whole_node_has_gone_it_is_silent_and_its_shims_are_lost_later() -> None:
    world = World()
    world.contact.record_loss(2, "it hung up", world.now)
    assert world.passes(SILENCE_S - 1.0, (0, 1, "n1")) == []
    assert world.passes(2.0, (0, 1, "n1")) == [NodeSilent("n2", SILENCE_S), ShimLost(2, "it hung up")]


def test_an_agent_that_does_not_call_again_is_lost() -> None:
    world = World()
    world.contact.record_loss("n1", "it hung up", world.now)
    assert world.passes(RETURN_S + 1.0, (0, 1, 2)) == [AgentLost("n1", "it hung up")]


def test_once_the_step_has_ended_nobody_is_waited_for() -> None:
    world = World()
    world.contact.record_loss(0, "it hung up", world.now)
    world.contact.no_return({0, 1, 2}, world.now)
    assert world.contact.due(world.now) == [ShimLost(0, "it hung up")]
    world.contact.record_loss(2, "it hung up", world.now)
    assert world.contact.wakes_at == world.now
    assert world.contact.due(world.now) == [ShimLost(2, "it hung up")]


def test_silence_of_our_own_is_not_theirs() -> None:
    world = World()
    world.now += 100.0
    world.contact.excuse(world.now)
    assert world.contact.due(world.now) == []
    assert world.passes(14.0) == []
    assert set(map(type, world.passes(2.0))) == {NodeSilent}


def test_the_forgotten_and_strangers_are_no_news() -> None:
    world = World()
    for owner in ALL:
        world.contact.forget(owner)
    world.contact.record_loss(0, "it hung up", world.now)
    assert world.contact.record_message(7, world.now) == [] and world.passes(100.0) == []


@given(
    st.lists(st.tuples(st.sampled_from(["heard", "broke", "came", "wait"]), st.integers(0, 2), st.floats(0.0, 20.0)), max_size=40)
)
def test_nobody_is_lost_who_is_connected_and_no_node_silent_that_was_heard(happens: list[tuple[str, int, float]]) -> None:
    world = World()
    nodes = {0: "n1", 1: "n1", 2: "n2", "n1": "n1"}
    connected, heard = {0, 1, 2}, dict.fromkeys(("n1", "n2"), world.now)
    for what, rank, seconds in happens:
        if what == "wait":
            for news in world.passes(seconds):
                if isinstance(news, ShimLost):
                    assert news.rank not in connected
                if isinstance(news, NodeSilent):
                    assert world.now - heard[news.node] >= SILENCE_S - 1e-6
        elif what == "broke":
            world.contact.record_loss(rank, "it hung up", world.now)
            connected.discard(rank)
        elif what == "came" or rank in connected:
            (
                world.contact.record_connection(rank, nodes[rank], world.now)
                if what == "came"
                else world.contact.record_message(rank, world.now)
            )
            connected.add(rank)
            heard[nodes[rank]] = world.now
