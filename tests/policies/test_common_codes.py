"""Codes that several chips raise at the same moment, looked for among the latest faults alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftslurm.model import record as rec
from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.folds.history import fold
from ftslurm.policies.weigh import SAME_MOMENT_S, common_codes

KEYS = st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from(["0", "1"]), st.sampled_from(["a", "b"]))


@given(st.lists(st.tuples(st.floats(0.0, 20.0), KEYS), max_size=12), KEYS)
def test_none_of_the_same_moment_is_missed(told: list[tuple[float, tuple[str, str, str]]], mine: tuple[str, str, str]) -> None:
    at, last, records = 1000.0, dict[tuple[str, str, str], float](), list[rec.Record]()
    for after, key in told:
        at += after
        last[key] = at
        records.append(rec.FaultSeen(at, *key, "HBM", "self-healing"))
    near = {key for key, seen in last.items() if abs(seen - last.get(mine, 0.0)) <= SAME_MOMENT_S} - {mine}
    found = common_codes([Fault(*mine, "HBM", FaultClass.SELF_HEALING)], fold(records))
    assert bool(found) == any(code == mine[2] for _, _, code in near)
