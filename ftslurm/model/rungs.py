"""The rungs of the ladder, the budgets they are paid from, and what a launcher is able to do, by the names that settings and
records have for them. A new rung is a member here, a row in policies/ladder.py, and its words in catalogs/glossary.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ftslurm.model.values import Value


class Word(str, Enum):
    """A name that stands in settings or records. It is its own text, so what was read as text equals it."""

    def __str__(self) -> str:
        return str(self.value)


class RungRemedy(Enum):
    """What is done where a rung answers."""

    START_RANK = "start one rank again, the others go on"
    RESTART = "start all ranks again on the same nodes"
    REPLACE = "replace bad nodes by others"
    SHRINK = "go on without the bad nodes"
    REQUEUE = "give the job back to Slurm, to be scheduled again"
    END = "end the job"


class Rung(Word):
    """Each with its remedy, in the order of the default ladder."""

    RANK_RESTART = "rank-restart", RungRemedy.START_RANK
    IN_PLACE_RESTART = "in-place-restart", RungRemedy.RESTART
    HANG_RESTART = "hang-restart", RungRemedy.RESTART
    NODE_REPLACEMENT = "node-replacement", RungRemedy.REPLACE
    SHRINK = "shrink", RungRemedy.SHRINK
    ISOLATED_REQUEUE = "isolated-requeue", RungRemedy.REQUEUE
    UNCONDITIONAL_REQUEUE = "unconditional-requeue", RungRemedy.REQUEUE
    FAIL = "fail", RungRemedy.END
    # Of no ladder: nothing has failed, or nobody of us was asked. Records name them in the place of a rung.
    ON_WARNING = "requeue-on-warning", RungRemedy.REQUEUE  # of Slurm's, as the job has asked for
    ON_REQUEST = "requeue-on-request", RungRemedy.REQUEUE  # of the owner of the job
    BY_SLURM = "requeue-by-slurm", RungRemedy.REQUEUE  # or by people, by way of it

    remedy: RungRemedy

    def __new__(cls, name: str, remedy: RungRemedy = RungRemedy.END) -> Rung:  # without one a rung is looked up by its name
        rung = str.__new__(cls, name)
        rung._value_, rung.remedy = name, remedy
        return rung


class Budget(Word):
    """What a decision may cost, as `Decided.cost` and RunBegan name it."""

    MAX_RESTARTS = "max_restarts"  # requeues
    CRASH_RESTARTS = "crash_restarts"  # in place, after a crash
    NODE_REPLACEMENTS = "node_replacements"
    JOB_RESTARTS = "max_job_restarts"  # that all rungs by which all ranks start again share, where a policy says so


class Capability(Word):
    """What ftrun has beside it: what the launcher and the Slurm behind it are able to do, and what is known of failures."""

    ASK = "ask"  # for the state of job and nodes
    REQUEUE = "requeue"
    PROBE = "probe"  # a node, by another way than our connections
    REPLACE = "replace"  # a node of the step by another one
    RELEASE = "release"  # a node of the allocation
    STEPS = "steps"  # list those of the job
    DIAGNOSE = "diagnose"  # tell what is behind a failure
    ADVISE = "advise"  # give hints on a hang


class Step(Value):
    """Of what ftrun would do, for people. rung: of the ladder; empty where none acts."""

    rung: str
    what: str


Steps = tuple[Step, ...]


class RungWords(Value):
    """A rung in words, for people: what it answers, what it costs, and when the next one is asked."""

    trigger: str
    price: str = ""
    degrades: str = ""


class Glossary(Value):
    """What the words of ftslurm itself mean (catalogs/glossary.yaml). words: by what such a word is, and its name. settings: what
    each does, by its name; hooks: the same of the hooks' settings."""

    words: Mapping[str, Mapping[str, str]]
    rungs: Mapping[Rung, RungWords]
    settings: Mapping[str, str]
    hooks: Mapping[str, str]


_NO_RUNGS = frozenset({Rung.ON_WARNING, Rung.ON_REQUEST, Rung.BY_SLURM})
# As text, since settings are text.
RUNG_NAMES = tuple(rung.value for rung in Rung if rung not in _NO_RUNGS)
REQUEUES = frozenset(rung for rung in Rung if rung.remedy is RungRemedy.REQUEUE and rung is not Rung.BY_SLURM)
SWAPS = frozenset(rung for rung in Rung if rung.remedy in (RungRemedy.REPLACE, RungRemedy.SHRINK))
# By these the job leaves bad nodes.
LEAVES = (*(rung for rung in Rung if rung in SWAPS), Rung.ISOLATED_REQUEUE)
# By these all ranks of the job start again. Source: AIMaster, --max-num-of-job-restart.
RESTARTS = frozenset(rung for rung in Rung if rung.remedy not in (RungRemedy.START_RANK, RungRemedy.END)) - _NO_RUNGS
