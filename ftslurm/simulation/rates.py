"""Random traces: faults that come at a constant rate, each on any node of the cluster. The same seed gives the same trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from ftslurm.errors import UsageError
from ftslurm.model.settings.tree import suggestion
from ftslurm.model.verdict import Confidence, ErrorClass, Retriable
from ftslurm.simulation.reading import MOST_FAULTS
from ftslurm.simulation.trace import Fault, JobPlan, Kind, Trace

# One typical fault of each kind. `device` heals; `broken-device` does not.
SAMPLES: Mapping[str, Fault] = {
    "device": Fault(0.0, Kind.DEVICE, code="80E01801"),
    "broken-device": Fault(0.0, Kind.DEVICE, code="Xid 79", vendor="nvidia", heals=False),
    "crash": Fault(0.0, Kind.CRASH),
    "bug": Fault(
        0.0, Kind.CRASH, error_class=ErrorClass.USER_CODE, retriable=Retriable.NO, confidence=Confidence.STRONG,
        signature="bug", program=True,
    ),
    "hang": Fault(0.0, Kind.HANG),
    "network-hang": Fault(0.0, Kind.HANG, network=True),
    "node-death": Fault(0.0, Kind.NODE_DEATH),
    "preemption": Fault(0.0, Kind.PREEMPTION),
    "requeue": Fault(0.0, Kind.REQUEUE),
}  # fmt: skip


def rate_of(text: str) -> tuple[str, float]:
    """`crash=0.002` -> kind and faults for each day of each node. Raises: UsageError."""
    name, _, number = text.partition("=")
    if name not in SAMPLES:
        raise UsageError(f"--random {text}: no such kind{suggestion(name, SAMPLES)}", hint=f"there are {', '.join(SAMPLES)}")
    try:
        rate = float(number)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1000:
        raise UsageError(f"--random {text}: a rate is a number of faults per node and day", hint=f"such as {name}=0.002")
    return name, rate


def random_trace(plan: JobPlan, rates: Sequence[tuple[str, float]], seed: int) -> Trace:
    """plan: with its `until_s`. Raises: UsageError for more faults than can be simulated."""
    random, days = Random(seed), plan.until_s / 86400.0
    faults: list[Fault] = []
    for name, rate in rates:
        whole = rate * plan.cluster
        if whole * days > MOST_FAULTS:
            raise UsageError(f"--random {name}={rate:g}: more than {MOST_FAULTS} faults", hint="take a lower rate, or less time")
        at = random.expovariate(whole) if whole else days
        while at < days:
            faults.append(replace(SAMPLES[name], at=at * 86400.0, node=random.randrange(plan.cluster) + 1))
            at += random.expovariate(whole)
    return Trace(plan, tuple(sorted(faults, key=lambda fault: fault.at)), f"random, seed {seed}")
