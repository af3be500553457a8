"""A controller in touch, out of touch, and stopped for a while: when it renews leases."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftslurm.model.settings.tree import Settings
from ftslurm.policies import lease
from ftslurm.policies.lease import LeaseQuorum, longest_s

LIMIT_S, BEAT_S = 15.0, 5.0


class Stage:
    """Nodes that beat, each with one caller, as long as they are in reach of the controller and it of them."""

    def __init__(self, *nodes: str) -> None:
        self.quorum = LeaseQuorum(LIMIT_S)
        self.now = 0.0
        self.said = dict.fromkeys(nodes, 0)
        self.has = dict.fromkeys(nodes, 0)
        for node in nodes:
            self.quorum.record_greeting(node, node, self.now)

    def beats(self, for_s: float, *nodes: str, answers_arrive: bool = True) -> Stage:
        for _ in range(round(for_s / BEAT_S)):
            self.now += BEAT_S
            for node in nodes:
                self.said[node] += 1
                self.quorum.record_beat(node, node, self.said[node], self.has[node], self.now)
                if answers_arrive:
                    self.has[node] = self.said[node]
        return self

    @property
    def cut_off(self) -> bool:
        return self.quorum.cut_off(self.now)


def test_in_touch_with_all_it_renews_and_asks_nobody() -> None:
    stage = Stage("n1", "n2", "n3")
    for _ in range(20):
        stage.beats(BEAT_S, "n1", "n2", "n3")
        assert not stage.cut_off and not stage.quorum.asks(stage.now)


@pytest.mark.parametrize(
    ("nodes", "left", "cut_off"),
    [
        (("n1",), ("n1",), False),  # nobody is on another side
        (("n1", "n2"), ("n1",), True),  # one of two is no majority
        (("n1", "n2", "n3"), ("n1", "n2"), False),
        (("n1", "n2", "n3"), ("n1",), True),
        (("n1", "n2", "n3", "n4"), ("n1", "n2"), True),
        (("n1", "n2", "n3", "n4"), ("n1", "n2", "n3"), False),
    ],
)
def test_more_than_half_of_the_nodes_are_enough(nodes: tuple[str, ...], left: tuple[str, ...], cut_off: bool) -> None:
    stage = Stage(*nodes).beats(20.0, *nodes)
    stage.beats(LIMIT_S + BEAT_S, *left)
    assert stage.cut_off is cut_off


def test_it_renews_for_no_longer_than_the_limit_after_it_was_last_in_touch() -> None:
    stage = Stage("n1", "n2").beats(20.0, "n1", "n2")  # the answer of 15 s has arrived on n2, as the beat of 20 s said
    assert not stage.quorum.cut_off(15.0 + LIMIT_S) and stage.quorum.cut_off(15.0 + LIMIT_S + 0.1)


def test_nodes_that_beat_one_after_the_other_are_seldom_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes of one rank would be sorted for each of their beats."""
    nodes = [f"n{number}" for number in range(100)]
    stage, looks, look = Stage(*nodes), list[float](), LeaseQuorum._last
    monkeypatch.setattr(LeaseQuorum, "_last", lambda quorum: looks.append(look(quorum)) or looks[-1])
    for step in range(2000):
        stage.now += BEAT_S / len(nodes)
        node = nodes[step % len(nodes)]
        stage.said[node] += 1
        stage.quorum.record_beat(node, node, stage.said[node], stage.said[node] - 1, stage.now)
        assert not stage.quorum.asks(stage.now) and not stage.cut_off
    assert len(looks) <= 40


def test_slurmctld_is_asked_before_it_comes_to_that_and_its_word_is_enough() -> None:
    stage = Stage("n1", "n2").beats(20.0, "n1", "n2")
    stage.beats(2 * BEAT_S, "n1")
    assert stage.quorum.asks(stage.now) and not stage.cut_off
    assert not stage.quorum.asks(stage.now + 1.0), "it is being asked"
    stage.quorum.slurm(stage.now)
    assert not stage.quorum.asks(stage.now + 7.0) and not stage.quorum.cut_off(stage.now + LIMIT_S)
    assert stage.quorum.asks(stage.now + 8.0), "and again, for as long as it matters"
    assert stage.quorum.cut_off(stage.now + LIMIT_S + 0.1)


def test_with_one_of_two_nodes_dead_it_goes_on_by_slurmctlds_word_and_nobody_says_that_slurmctld_is_away() -> None:
    """The node that is left beats every 5 s, and only then is anything looked at; slurmctld takes 2 s for each answer."""
    stage = Stage("n1", "n2").beats(20.0, "n1", "n2")
    asked: list[float] = []
    cut_off = 0
    for _ in range(40):
        stage.beats(BEAT_S, "n1")
        asked += [stage.now] if stage.quorum.asks(stage.now) else []
        cut_off += stage.cut_off
        assert not (stage.cut_off and stage.quorum.slurm_is_silent(stage.now))
        if asked and asked[-1] == stage.now:
            stage.quorum.slurm(stage.now + 2.0)
    assert cut_off <= 1, "at first, perhaps, between two beats"
    assert len(asked) <= 20, "no more than every other beat"


def test_a_slurmctld_that_was_asked_and_does_not_answer_is_silent() -> None:
    stage = Stage("n1", "n2").beats(20.0, "n1", "n2")
    stage.beats(2 * BEAT_S, "n1")
    assert stage.quorum.asks(stage.now) and not stage.quorum.slurm_is_silent(stage.now)
    stage.beats(BEAT_S, "n1")
    assert stage.quorum.asks(stage.now) and stage.quorum.slurm_is_silent(stage.now), (
        "asked again, and silent since the first time"
    )
    stage.quorum.slurm(stage.now)
    assert not stage.quorum.slurm_is_silent(stage.now)


def test_what_waited_in_a_socket_while_it_stood_still_is_no_touch() -> None:
    """It wakes on the wrong side of a cut, and reads what the others said before."""
    stage = Stage("n1", "n2", "n3").beats(20.0, "n1", "n2", "n3")
    stage.now += 50.0
    stage.beats(BEAT_S, "n1")
    for node in ("n2", "n3"):
        for _ in range(3):
            stage.said[node] += 1
            stage.quorum.record_beat(node, node, stage.said[node], stage.has[node], stage.now)
    assert stage.cut_off


def test_woken_up_in_reach_of_all_it_is_in_touch_again_a_beat_later() -> None:
    stage = Stage("n1", "n2", "n3").beats(20.0, "n1", "n2", "n3")
    stage.now += 40.0
    stage.beats(BEAT_S, "n1", "n2", "n3")
    assert stage.cut_off
    assert not stage.beats(BEAT_S, "n1", "n2", "n3").cut_off


def test_nodes_that_are_heard_and_hear_nothing_do_not_count() -> None:
    stage = Stage("n1", "n2").beats(20.0, "n1", "n2")
    stage.beats(LIMIT_S + BEAT_S, "n1")
    stage.beats(30.0, "n2", answers_arrive=False)
    assert stage.cut_off


def test_the_next_step_has_nodes_of_its_own() -> None:
    stage = Stage("n1", "n2", "n3").beats(20.0, "n1", "n2", "n3")
    stage.quorum.new_step([])
    for node in ("n1", "n4"):
        stage.quorum.record_greeting(node, node, stage.now)
    stage.said, stage.has = dict.fromkeys(("n1", "n4"), 0), dict.fromkeys(("n1", "n4"), 0)
    assert not stage.beats(60.0, "n1", "n4").cut_off
    stage.quorum.record_beat("n2", "n2", 99, 98, stage.now)  # one of the step before has nothing to say
    assert not stage.cut_off


def test_the_agents_that_stay_count_in_the_next_step_too() -> None:
    """One on a spare, with all ranks on our own node: it may succeed us."""
    stage = Stage("n1", "n2").beats(20.0, "n1", "n2")
    stage.quorum.new_step(["n1", "n2"])
    stage.quorum.record_greeting(0, "n1", stage.now)
    assert not stage.beats(60.0, "n1", "n2").cut_off
    assert stage.beats(LIMIT_S + BEAT_S, "n1").cut_off


def test_a_node_that_is_given_up_cuts_nobody_off() -> None:
    stage = Stage("n1", "n2").beats(20.0, "n1", "n2")
    stage.quorum.forget("n2")
    assert not stage.beats(60.0, "n1").cut_off
    stage.quorum.record_beat("n2", "n2", 99, 98, stage.now)
    stage.quorum.record_beat(7, "n2", 99, 98, stage.now)
    assert not stage.cut_off


def test_a_connection_made_anew_begins_anew() -> None:
    stage = Stage("n1", "n2").beats(20.0, "n1", "n2")
    stage.beats(30.0, "n1")
    assert stage.cut_off
    stage.quorum.record_greeting("n2", "n2", stage.now)
    assert not stage.cut_off


# --- the two sides of a cut

LEASE_S, TICK_S, ALL_S = Settings().lease.time_s, 0.5, 600.0
moments = st.floats(30.0, 200.0)


# The controller stood still for so long that its first answers renew nothing, and is cut off right after.
@example(phases=(0.0, 0.0), to_us=106.0, from_us=101.0, stopped=56.0, stopped_s=44.0)
@example(phases=(0.0, 1.0), to_us=47.0, from_us=46.0, stopped=30.0, stopped_s=15.0)
@given(
    phases=st.tuples(st.floats(0.0, 4.9), st.floats(0.0, 4.9)), to_us=moments, from_us=moments, stopped=moments,
    stopped_s=st.floats(0.0, 120.0),
)  # fmt: skip
def test_no_rank_beside_a_cut_off_controller_lives_when_a_successor_may_act(
    phases: tuple[float, float], to_us: float, from_us: float, stopped: float, stopped_s: float
) -> None:
    """Whichever way is cut first, and however the controller stands still before or after."""
    quorum = LeaseQuorum(Settings().nodes.silence_s)
    waiting: dict[str, list[tuple[int, float, int]]] = {"n1": [], "n2": []}  # beats that wait for the controller
    said, has = {"n1": 0, "n2": 0}, {"n1": 0, "n2": 0}
    renewed, answered = {"n1": 0.0, "n2": 0.0}, {"n1": 0.0, "n2": 0.0}
    due = dict(zip(("n1", "n2"), phases, strict=True))
    for node in renewed:
        quorum.record_greeting(node, node, 0.0)
    now = 0.0
    while now < ALL_S:
        now += TICK_S
        for node in ("n1", "n2"):
            if now >= due[node]:
                due[node] += BEAT_S
                said[node] += 1
                if node == "n1" or now < to_us:
                    waiting[node].append((said[node], now, has[node]))
        if stopped <= now < stopped + stopped_s:
            continue
        for node, beats in waiting.items():
            for number, asked_at, heard in beats:
                quorum.record_beat(node, node, number, heard, now)
                cut_off = quorum.cut_off(now)
                if node == "n1" or now < from_us:
                    has[node], answered[node] = number, asked_at
                    # A lease that has run out is never renewed.
                    if not cut_off and now < renewed[node] + LEASE_S:
                        renewed[node] = asked_at
            beats.clear()
    assert renewed["n1"] + LEASE_S <= answered["n2"] + longest_s(Settings()) - Settings().lease.margin_s + 2 * TICK_S


class Plain:
    """What the quorum means, looked at node by node each time."""

    def __init__(self, quorum: LeaseQuorum) -> None:
        self.quorum = quorum

    def last(self) -> float:
        latest = sorted(self.quorum._nodes.values(), reverse=True)
        return max(latest[len(latest) // 2], self.quorum._slurm_at)

    def cut_off(self, now: float) -> bool:
        return len(self.quorum._nodes) > 1 and now - self.last() > LIMIT_S

    def asks(self, now: float) -> bool:
        q = self.quorum
        if len(q._nodes) < 2 or now - q._asked_at < (1 - lease.ASK_SHARE) * LIMIT_S:
            return False
        share = lease.ASK_AGAIN_SHARE if q._slurm_at == self.last() else lease.ASK_SHARE
        return now - self.last() >= share * LIMIT_S


ACTS = st.tuples(
    st.sampled_from(["greet", "beat", "beat", "beat", "forget", "step", "slurm", "wait"]), st.integers(0, 5), st.floats(0.0, 20.0)
)


@given(st.lists(ACTS, max_size=60))
def test_what_is_kept_is_never_later_than_what_is_true(acts: list[tuple[str, int, float]]) -> None:
    """Any order of greetings, beats, losses and words of slurmctld: the answers are those of a look at every node."""
    kept, now, number = LeaseQuorum(LIMIT_S), 0.0, 0
    for act, which, seconds in acts:
        node, number = f"n{which}", number + 1
        if act == "greet":
            kept.record_greeting(node, node, now)
        elif act == "beat":
            kept.record_beat(node, node, number, max(kept._answered.get(node, {0: 0.0}), default=0), now)
        elif act == "forget":
            kept.forget(node)
        elif act == "step":
            kept.new_step({f"n{each}" for each in range(which)})
        elif act == "slurm":
            kept.slurm(now)
        else:
            now += seconds
        plain = Plain(kept)
        assert kept.cut_off(now) == plain.cut_off(now)
        wanted = plain.asks(now)
        assert kept.asks(now) == wanted and kept.cut_off(now) == plain.cut_off(now)
