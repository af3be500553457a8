"""What an srun command line says: which words are options, and where the user's program begins.

Pure, and light to load, as ftrun reads every command line with it. The rules are those of srun(1), which
reads its options with getopt_long(3) told to stop at the first word that is not one ("+"):

- a required value is `-N4`, `-N 4`, `--nodes=4` or `--nodes 4`, and the next word is taken whatever it is;
- an optional value is `-K1` or `--kill-on-bad-exit=1`, never the next word;
- short options cluster (`-lN2`), long ones may be cut short while only one is meant (`--nod` is not: --nodes, --nodelist);
- `--` ends the options;
- a lone `:` after the options, even among the program's arguments, starts the next component of a heterogeneous step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ftslurm.errors import UsageError
from ftslurm.model.job import Share
from ftslurm.model.text import megabytes, whole
from ftslurm.model.values import Value

# --- what srun would ask slurmctld for outside an allocation, as the command line of a salloc


class NewAllocation(Value):
    """salloc: its options. env: for it and all that runs in the allocation. component: what the step then is."""

    salloc: tuple[str, ...]
    env: Mapping[str, str]
    component: Component


def new_allocation(component: Component, env: Mapping[str, str], spares: int) -> NewAllocation:
    """What `srun OPTIONS COMMAND` asks for. spares: nodes beyond those of the step. Raises: UsageError."""
    options = component.options
    named = [name for name, _ in parse_options(options)]
    given = without(options, *names_of("step"), *_plugins(options))
    asked = (*from_env(env, "both", "job", but=named), *_named(options, env, component.command), *given)
    if spares:
        asked = _with_spares(asked, spares)
    return NewAllocation(
        asked,
        # What the user has set for salloc is not meant for what stands where srun stood.
        {name: value for name, value in env.items() if not name.startswith("SALLOC_")},
        Component(_of_step(options), component.command),
    )


def from_env(env: Mapping[str, str], *whose: str, but: Iterable[str] = ()) -> Iterator[str]:
    """The variables of such options as options. but: options that are given, for which they do not count."""
    for option in srun_options().values():
        for value in filter(None, map(env.get, option.variables)):
            if option.of in whose and option.name not in but:
                yield f"--{option.name}" if option.takes is Takes.NOTHING else f"--{option.name}={value}"


def _named(options: Sequence[str], env: Mapping[str, str], command: Sequence[str]) -> tuple[str, ...]:
    """The job's name is the program's, unless it was given one; salloc would take ours."""
    if option_value(options, "job-name") or env.get("SLURM_JOB_NAME"):
        return ()
    return (f"--job-name={command[0].rpartition('/')[2]}",)


def _plugins(options: Sequence[str]) -> tuple[str, ...]:
    """Options of known and unknown plugins; srun itself refuses what is no option."""
    known = srun_options()
    return tuple(name for name, _ in parse_options(options) if name not in known or known[name].of == "plugin")


def _of_step(options: Sequence[str]) -> tuple[str, ...]:
    """The step's options: as many nodes as were granted for `-N2-4`, else what the user asked for."""
    kept = without(options, *names_of("job"))
    return kept if whole(option_value(kept, "nodes") or "") else without(kept, "nodes")


def _with_spares(options: Sequence[str], spares: int) -> tuple[str, ...]:
    """The options for `spares` more nodes with as many tasks each. Raises: UsageError if the number of nodes is not given."""
    nodes = whole(option_value(options, "nodes") or "")
    if not nodes:
        raise UsageError("spare nodes (nodes.spares) need a number of nodes", hint="write -N4, or omit --ft-spares")
    tasks = whole(option_value(options, "ntasks") or "")
    room = (f"--ntasks={math.ceil(tasks / nodes) * (nodes + spares)}",) if tasks else ()
    return (*without(options, "nodes", "ntasks"), f"--nodes={nodes + spares}", *room)


# Also ft_launcher's own names for its configuration, up to 0.4, and its spellings; srun has no option that begins so.
FT_PREFIX = ("--ft-", "--ft_", "--fault-tol-", "--fault_tol_", "--ignore-missing-", "--ignore_missing_")
# torchrun's and ft_launcher's, for which srun has other words.
TORCHRUN_OPTIONS = frozenset(
    "nnodes nproc-per-node max-restarts standalone rdzv-backend rdzv-endpoint rdzv-id rdzv-conf monitor-interval term-timeout"
    " workers-stop-timeout start-method role module no-python run-path redirects tee log-dir local-ranks-filter node-rank"
    " master-addr master-port local-addr logs-specs".split()
)
COMPONENT_SEPARATOR = ":"


class Takes(Enum):
    """What an option takes besides its name."""

    VALUE = "value"
    OPTIONAL = "optional"
    NOTHING = "nothing"


class SrunOption(NamedTuple):
    """A row of srun-options.txt, which tells what the columns mean. means: the name that counts."""

    name: str
    letter: str
    takes: Takes
    of: str
    variables: tuple[str, ...] = ()
    means: str = ""


@cache
def srun_options() -> Mapping[str, SrunOption]:
    """By name, plugins' options too."""
    lines = Path(__file__).with_name("srun-options.txt").read_text(encoding="utf-8").splitlines()
    return {row[0]: _option(*row) for row in map(str.split, lines) if row[0] != "#"}


def _option(name: str, letter: str, takes: str, of: str, *further: str) -> SrunOption:
    if further and further[0][0] == "=":
        return SrunOption(name, letter, Takes(takes), of, means=further[0][1:])
    return SrunOption(name, letter, Takes(takes), of, further, name)


@cache
def by_letter() -> Mapping[str, SrunOption]:
    return {option.letter: option for option in srun_options().values() if option.letter != "-"}


def names_of(whose: str) -> tuple[str, ...]:
    return tuple(option.name for option in srun_options().values() if option.of == whose)


class Component(Value):
    """One component of a step; most steps have one.

    options: srun's, word for word as given, less the `--` that may end them.
    command: the program and its arguments, untouched; empty where none was given (`srun --version`).
    """

    options: tuple[str, ...]
    command: tuple[str, ...]


class CommandLine(Value):
    """What ftrun was told, taken apart.

    ft: ftrun's own options in order, each `--ft-name=value` or `--ft-name`.
    components: at least one.
    unknown: options neither srun's nor a plugin's we know, as spelled, without value. One of them written `--new VALUE`
        would have been misread, VALUE taken for the program: whoever has to ask can ask for `--new=VALUE`.
    """

    ft: tuple[str, ...]
    components: tuple[Component, ...]
    unknown: tuple[str, ...] = ()


class _Given(Value):
    """One option as given. name: long and canonical; words: what says it, and it alone, in the spelling given."""

    name: str
    value: str | None
    words: tuple[str, ...]
    known: bool = True


# What getopt takes at once: one long option, or a cluster of short ones.
_Argument = tuple[_Given, ...]


def split_command_line(argv: Sequence[str], ft_flags: Iterable[str]) -> CommandLine:
    """Take apart what followed `ftrun`. `--ft-*` options may stand wherever srun's may; after the program none is looked for.

    ft_flags: the `--ft-*` options that take no value; `name`, `ft-name` and `--ft-name` mean the same, and with _ for -. All
        others take one.
    Raises: UsageError for a value that is missing and an abbreviation that may mean several options. All else that is
        wrong with an option of srun's is left to srun to say.
    Source: srun(1); _opt_args in src/srun/opt.c and the loop over components in src/srun/srun_job.c for the colon.
    """
    flags = frozenset(_ft_name(flag) for flag in ft_flags)
    ft: list[str] = []
    unknown: list[str] = []
    components: list[Component] = []
    rest: Sequence[str] | None = tuple(argv)
    while rest is not None:
        arguments = list(_read_options(rest, flags))
        ours = [argument for argument in arguments if _is_ft(argument)]
        theirs = [argument for argument in arguments if not _is_ft(argument)]
        ft += ["=".join(_words(argument)) for argument in ours]
        unknown += [given.words[0].partition("=")[0] for argument in theirs for given in argument if not given.known]
        command, rest = _split_command(rest[len(_all_words(arguments)) :])
        components.append(Component(_all_words(theirs), command))
    return CommandLine(tuple(ft), tuple(components), tuple(unknown))


def join_components(components: Iterable[Component]) -> tuple[str, ...]:
    """The words to give to srun: the inverse of the split, for components that may have been changed since."""
    words: list[str] = []
    for place, component in enumerate(components):
        words += [COMPONENT_SEPARATOR] if place else []
        words += component.options
        words += ["--"] if component.command and component.command[0].startswith("-") else []
        words += component.command
    return tuple(words)


def parse_options(options: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    """Every option in order as (long name, value); the value is None where none was given. Takes a Component's options.

    Abbreviations, short options and synonyms come out under one name. An unknown option keeps the name it was given.
    Raises: UsageError as `split_command_line`, and for a word that is no option.
    """
    return tuple((given.name, given.value) for argument in _read_all(options) for given in argument)


def option_value(options: Sequence[str], *names: str) -> str | None:
    """The value that counts for srun, the last one given, of an option known by any of `names` (`"N"`, `"nodes"`).

    None if it was not given, or given without its optional value: `has_flag` tells the two apart.
    """
    wanted = _canonical(names)
    values = [value for name, value in parse_options(options) if name in wanted]
    return values[-1] if values else None


def has_flag(options: Sequence[str], *names: str) -> bool:
    """Was any of these options given, with a value or without?"""
    wanted = _canonical(names)
    return any(name in wanted for name, _ in parse_options(options))


def said(options: Sequence[str], env: Mapping[str, str], name: str) -> str | None:
    """The value that counts for srun, by the option or else by its variables; empty without a value, None if nobody says it."""
    if has_flag(options, name):
        return option_value(options, name) or ""
    found = [env[variable] for variable in srun_options()[name].variables if variable in env]
    return next(filter(None, reversed(found)), "" if found else None)


def without(options: Sequence[str], *names: str) -> tuple[str, ...]:
    """The options without these, in any spelling, values included: `-lN2` less `nodes` is `-l`. The rest stays as given."""
    unwanted = _canonical(names)
    return _all_words(tuple(given for given in argument if given.name not in unwanted) for argument in _read_all(options))


def _canonical(names: Iterable[str]) -> frozenset[str]:
    """The long names that `names`, without dashes, stand for."""
    found = {name: srun_options().get(name) or by_letter().get(name) for name in names}
    return frozenset(option.means if option else name for name, option in found.items())


def _split_command(words: Sequence[str]) -> tuple[tuple[str, ...], Sequence[str] | None]:
    """What follows the options: the command, and the words after its colon, None if there is no colon."""
    words = tuple(words[1:] if words[:1] == ("--",) else words)
    if COMPONENT_SEPARATOR not in words:
        return words, None
    colon = words.index(COMPONENT_SEPARATOR)
    return words[:colon], words[colon + 1 :]


def _words(argument: _Argument) -> tuple[str, ...]:
    """As it stood on the command line. Only the last of a cluster takes a value, so the letters before it just join."""
    if not argument:
        return ()
    first, last = argument[0], argument[-1]
    return (first.words[0] + "".join(given.words[0][1:] for given in argument[1:]), *last.words[1:])


def _all_words(arguments: Iterable[_Argument]) -> tuple[str, ...]:
    return tuple(word for argument in arguments for word in _words(argument))


def _is_ft(argument: _Argument) -> bool:
    return argument[0].words[0].startswith(FT_PREFIX)


def _is_option(word: str) -> bool:
    return word.startswith("-") and word not in ("-", "--")


def _read_all(options: Sequence[str]) -> Sequence[_Argument]:
    arguments = tuple(_read_options(options, frozenset()))
    stray = options[len(_all_words(arguments)) :]
    if stray:
        raise UsageError(f"{stray[0]!r} is not an option of srun", hint="write a value as --name=VALUE")
    return arguments


def _read_options(words: Sequence[str], ft_flags: frozenset[str]) -> Iterator[_Argument]:
    """The options that `words` begin with."""
    at = 0
    while at < len(words) and _is_option(words[at]):
        argument = _read_argument(words, at, ft_flags)
        yield argument
        at += len(_words(argument))


def _read_argument(words: Sequence[str], at: int, ft_flags: frozenset[str]) -> _Argument:
    if words[at].startswith(FT_PREFIX):
        return (_read_ft(words, at, ft_flags),)
    if words[at].startswith("--"):
        return (_read_long(words, at),)
    return tuple(_read_cluster(words, at))


def _ft_name(spelled: str) -> str:
    return "--ft-" + spelled.replace("_", "-").removeprefix("--").removeprefix("ft-")


def _read_ft(words: Sequence[str], at: int, ft_flags: frozenset[str]) -> _Given:
    spelled, equals, value = words[at].partition("=")
    if equals or _ft_name(spelled) in ft_flags:
        return _Given(spelled[2:], value if equals else None, (words[at],))
    value = _next_word(words, at, spelled)
    return _Given(spelled[2:], value, (spelled, value))


def _read_long(words: Sequence[str], at: int) -> _Given:
    spelled, equals, value = words[at].partition("=")
    option = _spelled(spelled[2:])
    name = option.means if option else spelled[2:]
    # A value by "=" is kept even where the table allows none: --pty had none once. srun itself says so if it minds.
    if equals or option is None or option.takes is not Takes.VALUE:
        return _Given(name, value if equals else None, (words[at],), known=option is not None)
    value = _next_word(words, at, spelled)
    return _Given(name, value, (spelled, value))


def _read_cluster(words: Sequence[str], at: int) -> Iterator[_Given]:
    """`-lN2`: letters that take nothing, and at most one at the end that takes a value."""
    for i, letter in enumerate(words[at][1:], start=2):
        option = by_letter().get(letter)
        attached = words[at][i:]
        if option is None or option.takes is Takes.NOTHING:
            yield _Given(option.name if option else letter, None, (f"-{letter}",), known=option is not None)
        elif attached or option.takes is Takes.OPTIONAL:
            yield _Given(option.name, attached or None, (f"-{letter}{attached}",))
            return
        else:
            value = _next_word(words, at, f"-{letter}")
            yield _Given(option.name, value, (f"-{letter}", value))


def _next_word(words: Sequence[str], at: int, spelled: str) -> str:
    if at + 1 == len(words):
        raise UsageError(f"option {spelled} needs a value", hint=f"write {spelled} VALUE")
    return words[at + 1]


def _spelled(name: str) -> SrunOption | None:
    """The option that `name` spells or abbreviates, None if we know none.

    Raises: UsageError where several begin so and they are not one under two names (getopt_long(3) of glibc).
    """
    if name in srun_options():
        return srun_options()[name]
    candidates = [option for option in srun_options().values() if option.of != "plugin" and option.name.startswith(name)]
    if len({option.means for option in candidates}) > 1:
        meanings = ", ".join(f"--{option.name}" for option in candidates)
        raise UsageError(f"srun option --{name} is ambiguous: {meanings}", hint="write the option in full")
    return candidates[0] if candidates else None


# --- the options of a step that replaces another, so that its ranks get the same CPUs, memory and GPUs. Pure
# A step that Slurm still lists holds its memory, also where nothing is left of it. Source: srun(1); docs/slurm-facts.md, "Several
# steps in one allocation", seen on 22.05, 24.11 and 26.05 with CR_Core_Memory:
# - memory by CPU is counted against it in spite of --overlap ("Memory required by task is not available"); memory by node or by
#   GPU is shared, as are CPUs, GPUs and other GRES. So it is asked for by node: what it came to on each.
# - --mem=0 is granted too, but the new step's limit is all that the job has there.
# - --exclusive of a step means --exact, and cannot stand beside --overlap.

# Of the environment: what an option of ours takes the place of.
REPLACED = ("SLURM_EXCLUSIVE",)
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


def same_share(options: Sequence[str], env: Mapping[str, str], shares: Sequence[Share], lent: bool = False) -> tuple[str, ...]:
    """`options`, such that the step has `shares` and runs beside others. env: of the batch script, which srun reads as well.

    shares: of the nodes of this srun, as many CPUs on each; empty where nobody knows: then memory by CPU is asked for as all that
    the job has there, since Slurm would refuse less. lent: it runs in a donor job, where our
    environment says nothing of memory and GPUs.
    """
    exact = has_flag(options, "exclusive") or "SLURM_EXCLUSIVE" in env
    kept = without(options, "exclusive", "overlap")
    kept = (*kept, "--exact") if exact and not has_flag(kept, "exact") else kept
    kept = _with_gpus(kept, env, shares, lent)
    if not shares and not lent and by_cpu(options, env):
        return (*without(kept, *_MEMORY), "--mem=0")
    memory_mb = _memory_mb(options, env, shares, lent)
    return (*without(kept, *_MEMORY), f"--mem={memory_mb}") if memory_mb else kept


def by_cpu(options: Sequence[str], env: Mapping[str, str]) -> bool:
    """Is the step's memory counted by CPU?"""
    return _memory(options, env)[0] == "mem-per-cpu"


def _memory(options: Sequence[str], env: Mapping[str, str]) -> tuple[str, int]:
    """Which of srun's options says how much, and MB; an option beats the environment. Source: srun(1)."""
    for name in _MEMORY:
        if has_flag(options, name):
            return name, megabytes(option_value(options, name) or "")
    variables = {"mem": "SLURM_MEM_PER_NODE", "mem-per-cpu": "SLURM_MEM_PER_CPU", "mem-per-gpu": "SLURM_MEM_PER_GPU"}
    return next(((name, megabytes(env[variable])) for name, variable in variables.items() if variable in env), ("", 0))


def _memory_mb(options: Sequence[str], env: Mapping[str, str], shares: Sequence[Share], lent: bool) -> int:
    """MB to request on each node; 0 if the options request memory already, or it is unknown."""
    name, each_mb = _memory(options, env)
    said_there = not lent or has_flag(options, name) if name else True
    if name == "mem-per-cpu":
        return each_mb * max((share.cpus for share in shares), default=0)
    if name == "mem-per-gpu" and not said_there:
        return each_mb * max((share.gpus for share in shares), default=0)
    return 0 if said_there else each_mb


def _with_gpus(options: tuple[str, ...], env: Mapping[str, str], shares: Sequence[Share], lent: bool) -> tuple[str, ...]:
    """`--gpus` counts for the whole step: of a part of it, or of a smaller one, as many as these nodes had."""
    said = option_value(options, "gpus") or ("" if lent else env.get("SLURM_GPUS", ""))
    kind, _, count = said.rpartition(":")
    now = sum(share.gpus for share in shares)
    if whole(count) is None or not now or not all(share.gpus for share in shares) or now == whole(count):
        return options
    return (*without(options, "gpus"), f"--gpus={kind + ':' if kind else ''}{now}")
