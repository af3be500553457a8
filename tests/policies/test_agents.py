"""Which nodes may still report their devices: the same answer as a search through all of them, whatever happened between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftslurm.policies.judge.step import AgentRoster

NODES = ("n1", "n2", "n3", "n4")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["expect", "arrive", "arrive without devices", "lose", "forget", "look", "die"]), st.sampled_from(NODES)
    )
)


@given(STEPS)
def test_who_may_still_tell_is_found_as_by_a_search(steps: list[tuple[str, str]]) -> None:
    roster, gone, looked = AgentRoster(), set[str](), set[str]()
    for what, node in steps:
        match what:
            case "expect":
                roster.expect([node], (), (), 0.0)
            case "arrive":
                roster.arrive(node, ("gpu",), 0.0)
            case "arrive without devices":
                roster.arrive(node, (), 0.0)
            case "lose":
                roster.lose(node, 0.0)
            case "forget":
                roster.forget([node])
            case "look":
                looked ^= {node}
            case _:
                gone ^= {node}
        wanted = any(
            name not in gone and (kinds is None or (bool(kinds) and name not in looked)) for name, kinds in roster.kinds.items()
        )
        assert roster.may_tell(gone, looked) == wanted
