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
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from ftslurm.errors import UsageError
from ftslurm.model.job import Share
from ftslurm.model.text import whole
from ftslurm.model.values import Value

# --- what srun would ask slurmctld for outside an allocation, as the command line of a salloc
# srun gives one command line to two requests, for an allocation and for a step in it. Here it is divided: most options shape
# both (`-N2 -n8 --gres=gpu:4`), some mean the allocation alone (`--partition`), others the step alone (`--label`). Source:
# srun(1) and salloc(1) of 22.05 to 26.05; a test asks the installed salloc which options it takes.

# salloc does not know them, or (chdir, container) would do at once what only the tasks shall do. Plugins' options, too.
STEP_ONLY = frozenset("""
    accel-bind async autocomplete bcast bcast-exclude chdir compress container container-id cpu-bind cpu_bind
    debugger-test disable-status epilog error exact export external-launcher het-group ignore-signals input interactive jobid
    kill-on-bad-exit label mem-update mpi msg-timeout multi-prog no-allocate open-mode output overlap pack-group parsable
    preserve-env prolog propagate pty quit-on-interrupt relative resv-ports send-libs slurmd-debug task-epilog task-prolog
    test-only threads treewidth unbuffered wait wait-for-children whole
""".split())  # fmt: skip
# A step has none of this, or --exclusive would mean something else there.
ALLOCATION_ONLY = frozenset("""
    account bb bbf begin cluster-constraint clusters comment constraint contiguous deadline delay-boot dependency exclusive
    extra gid hold immediate licenses mail-type mail-user mcs-label mincpus nice oversubscribe partition power prefer priority
    qos reboot reservation segment signal spread-job stepmgr switches time time-min tmp uid use-min-nodes wckey x11
""".split())  # fmt: skip
# What srun reads for want of an option, where it asks for an allocation; salloc has other names. Source: srun(1), INPUT
# ENVIRONMENT VARIABLES.
_INPUTS = """
    account acctg-freq clusters constraint core-spec cpus-per-gpu delay-boot dependency distribution exclusive gpu-bind
    gpu-freq gpus gpus-per-node gpus-per-task gres gres-flags hint immediate job-name mem-bind mem-per-cpu mem-per-gpu
    network no-kill ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket overcommit partition power
    profile qos reservation signal spread-job thread-spec threads-per-core tres-per-task use-min-nodes wckey
"""
INPUTS: Mapping[str, str] = {
    "SLURM_BURST_BUFFER": "bb", "SRUN_CPUS_PER_TASK": "cpus-per-task", "SLURM_MEM_PER_NODE": "mem", "SLURM_NNODES": "nodes",
    "SLURM_JOB_NUM_NODES": "nodes", "SLURM_NPROCS": "ntasks", "SLURM_REQ_SWITCH": "switches", "SLURM_TIMELIMIT": "time",
    **{f"SLURM_{name.upper().replace('-', '_')}": name for name in _INPUTS.split()},
}  # fmt: skip


class NewAllocation(Value):
    """salloc: its options. env: for it and all that runs in the allocation. component: what the step then is."""

    salloc: tuple[str, ...]
    env: Mapping[str, str]
    component: Component


def new_allocation(component: Component, env: Mapping[str, str], spares: int) -> NewAllocation:
    """What `srun OPTIONS COMMAND` asks for. spares: nodes beyond those of the step. Raises: UsageError."""
    options = component.options
    given = without(options, *STEP_ONLY, *_plugins(options))
    asked = (*_from_env(options, env), *_named(options, env, component.command), *given)
    if spares:
        asked = _with_spares(asked, spares)
    return NewAllocation(
        asked,
        # What the user has set for salloc is not meant for what stands where srun stood.
        {name: value for name, value in env.items() if not name.startswith("SALLOC_")},
        Component(_of_step(options), component.command),
    )


def _from_env(options: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """The variables as options. One that is given as an option counts less, as for srun."""
    given = {name for name, _ in parse_options(options)}
    for variable, option in INPUTS.items():
        if (value := env.get(variable)) and option not in given:
            yield f"--{option}" if SRUN_OPTIONS[option] is Takes.NOTHING else f"--{option}={value}"


def _named(options: Sequence[str], env: Mapping[str, str], command: Sequence[str]) -> tuple[str, ...]:
    """The job's name is the program's, unless it was given one; salloc would take ours."""
    if option_value(options, "job-name") or env.get("SLURM_JOB_NAME"):
        return ()
    return (f"--job-name={command[0].rpartition('/')[2]}",)


def _plugins(options: Sequence[str]) -> tuple[str, ...]:
    """Options of known and unknown plugins; srun itself refuses what is no option."""
    return tuple(name for name, _ in parse_options(options) if name in PLUGIN_OPTIONS or name not in SRUN_OPTIONS)


def _of_step(options: Sequence[str]) -> tuple[str, ...]:
    """The step's options: as many nodes as were granted for `-N2-4`, else what the user asked for."""
    kept = without(options, *ALLOCATION_ONLY)
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

    VALUE = "a required value"
    OPTIONAL = "an optional value"
    NOTHING = "nothing"


def _table(value: str, optional: str, nothing: str) -> dict[str, Takes]:
    return {
        **dict.fromkeys(value.split(), Takes.VALUE),
        **dict.fromkeys(optional.split(), Takes.OPTIONAL),
        **dict.fromkeys(nothing.split(), Takes.NOTHING),
    }


# All that srun 22.05 to 26.05 understands (src/common/slurm_opt.c of each), its undocumented options too.
# Gone since: uid and gid (23.02), power (24.05). Where versions differ the wider reading stands, because a
# value can be optional only with "=": --pty takes one from 23.02 on, --external-launcher from 24.05 on.
SRUN_OPTIONS: Mapping[str, Takes] = _table(
    value="""
        accel-bind account acctg-freq autocomplete bb bbf bcast-exclude begin chdir cluster cluster-constraint clusters
        comment constraint container container-id container-type context core-spec cores-per-socket cpu-bind cpu-freq
        cpu_bind cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution epilog error exclude export extra
        extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags het-group
        hint ignore-signals input job-name jobid licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
        mem-per-gpu mem-update mincpus mpi msg-timeout network nodefile nodelist nodes ntasks ntasks-per-core
        ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output pack-group partition power
        prefer priority profile prolog qos relative reservation resources segment signal slurmd-debug sockets-per-node
        switches task-epilog task-prolog tasks-per-node thread-spec threads threads-per-core time time-min tmp treewidth
        tres-bind tres-per-task uid wait wckey""",
    optional="""
        bcast compress exclusive external-launcher immediate kill-on-bad-exit nice no-kill oom-kill-step overlap
        propagate pty resv-ports send-libs x11""",
    nothing="""
        async consolidate-segments contiguous debugger-test disable-status exact help hold interactive label multi-prog
        no-allocate overcommit oversubscribe parsable preserve-env quiet quit-on-interrupt reboot spread-job
        spread-segments stepmgr test-only unbuffered usage use-min-nodes verbose version wait-for-children whole""",
)

# Options that widespread SPANK plugins add (spank(7)): the container ones are pyxis (NVIDIA/pyxis, args.c), the
# others eth-cscs/slurm-uenv-mount. Known by their full name only: whether a site has the plugin, and so whether an
# abbreviation is ambiguous, is not ours to know.
PLUGIN_OPTIONS: Mapping[str, Takes] = _table(
    value="""
        container-env container-image container-mounts container-name container-save container-unshare container-workdir
        uenv uenv-uarch""",
    optional="",
    nothing="""
        container-entrypoint container-entrypoint-log container-mount-home container-readonly container-remap-root
        container-writable no-container-entrypoint no-container-mount-home no-container-remap-root""",
)

SHORT_OPTIONS: Mapping[str, str] = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "E": "preserve-env", "F": "nodefile",
    "G": "gpus", "H": "hold", "I": "immediate", "J": "job-name", "K": "kill-on-bad-exit", "L": "licenses",
    "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet", "S": "core-spec", "T": "threads",
    "V": "version", "W": "wait", "X": "disable-status", "Z": "no-allocate", "b": "begin", "c": "cpus-per-task",
    "d": "dependency", "e": "error", "h": "help", "i": "input", "k": "no-kill", "l": "label", "m": "distribution",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "r": "relative", "s": "oversubscribe", "t": "time",
    "u": "unbuffered", "v": "verbose", "w": "nodelist", "x": "exclude",
}  # fmt: skip

# One option under two names, by the setter they share in slurm_opt.c.
SYNONYMS: Mapping[str, str] = {
    "cluster": "clusters",
    "cpu_bind": "cpu-bind",
    "pack-group": "het-group",
    "tasks-per-node": "ntasks-per-node",
}


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
        unknown += [_spelling(given) for argument in theirs for given in argument if not given.known]
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


def without(options: Sequence[str], *names: str) -> tuple[str, ...]:
    """The options less these, in whatever spelling, values included: `-lN2` less `nodes` is `-l`. The rest stays as given."""
    unwanted = _canonical(names)
    return _all_words(tuple(given for given in argument if given.name not in unwanted) for argument in _read_all(options))


def _canonical(names: Iterable[str]) -> frozenset[str]:
    """The long names that `names`, without dashes, stand for."""
    long_names = (SHORT_OPTIONS.get(name, name) for name in names)
    return frozenset(SYNONYMS.get(name, name) for name in long_names)


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


def _spelling(given: _Given) -> str:
    return given.words[0].partition("=")[0]


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
    full_name = _full_name(spelled[2:])
    name = SYNONYMS.get(full_name, full_name) if full_name else spelled[2:]
    # A value by "=" is kept even where the table allows none: --pty had none once. srun itself says so if it minds.
    if equals or full_name is None or _takes(full_name) is not Takes.VALUE:
        return _Given(name, value if equals else None, (words[at],), known=full_name is not None)
    value = _next_word(words, at, spelled)
    return _Given(name, value, (spelled, value))


def _read_cluster(words: Sequence[str], at: int) -> Iterator[_Given]:
    """`-lN2`: letters that take nothing, and at most one at the end that takes a value."""
    for i, letter in enumerate(words[at][1:], start=2):
        name = SHORT_OPTIONS.get(letter)
        takes = SRUN_OPTIONS[name] if name else Takes.NOTHING
        attached = words[at][i:]
        if takes is Takes.NOTHING:
            yield _Given(name or letter, None, (f"-{letter}",), known=name is not None)
        elif attached or takes is Takes.OPTIONAL:
            yield _Given(name or letter, attached or None, (f"-{letter}{attached}",))
            return
        else:
            value = _next_word(words, at, f"-{letter}")
            yield _Given(name or letter, value, (f"-{letter}", value))


def _takes(full_name: str) -> Takes:
    return SRUN_OPTIONS.get(full_name) or PLUGIN_OPTIONS[full_name]


def _next_word(words: Sequence[str], at: int, spelled: str) -> str:
    if at + 1 == len(words):
        raise UsageError(f"option {spelled} needs a value", hint=f"write {spelled} VALUE")
    return words[at + 1]


def _full_name(name: str) -> str | None:
    """The option that `name` spells or abbreviates, None if we know none.

    Raises: UsageError where several begin so and they are not one under two names (getopt_long(3) of glibc).
    """
    if name in SRUN_OPTIONS or name in PLUGIN_OPTIONS:
        return name
    candidates = [option for option in SRUN_OPTIONS if option.startswith(name)]
    if len({SYNONYMS.get(option, option) for option in candidates}) > 1:
        meanings = ", ".join(f"--{option}" for option in sorted(candidates))
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
_UNITS_MB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
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


def megabytes(text: str) -> int:
    """`2G`, `1500` or `1.5T` as srun takes it, in MB, rounded up; 0 for what it would not take."""
    found = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", text.strip().upper(), re.ASCII)
    return -int(-int(found[1]) * _UNITS_MB[found[2]] // 1) if found else 0


def _with_gpus(options: tuple[str, ...], env: Mapping[str, str], shares: Sequence[Share], lent: bool) -> tuple[str, ...]:
    """`--gpus` counts for the whole step: of a part of it, or of a smaller one, as many as these nodes had."""
    said = option_value(options, "gpus") or ("" if lent else env.get("SLURM_GPUS", ""))
    kind, _, count = said.rpartition(":")
    now = sum(share.gpus for share in shares)
    if whole(count) is None or not now or not all(share.gpus for share in shares) or now == whole(count):
        return options
    return (*without(options, "gpus"), f"--gpus={kind + ':' if kind else ''}{now}")
