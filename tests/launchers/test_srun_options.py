"""Command lines told as tables, and the same rules asked of glibc's getopt_long, which is what srun reads with."""

import ctypes
import platform
import random
import shlex

import pytest

from ftslurm.errors import UsageError
from ftslurm.launchers.srun_options import (
    CommandLine,
    Component,
    Takes,
    by_letter,
    has_flag,
    join_components,
    option_value,
    parse_options,
    split_command_line,
    srun_options,
    without,
)

FT_FLAGS = frozenset({"--ft-dry-run", "--ft-explain"})


def split(line):
    return split_command_line(shlex.split(line), FT_FLAGS)


def words(line):
    return tuple(shlex.split(line))


# line, srun's options, the program
ONE_COMPONENT = [
    ("python train.py", "", "python train.py"),
    ("-N4 --ntasks-per-node=8 python train.py -N 3", "-N4 --ntasks-per-node=8", "python train.py -N 3"),
    ("-lN2 -n 8 bash -c 'a : b'", "-lN2 -n 8", "bash -c 'a : b'"),
    ("-N 4 -n 32 --gres gpu:8 ./a.out --gres=x", "-N 4 -n 32 --gres gpu:8", "./a.out --gres=x"),
    ("--nodes 4 --partition gpu -J llm torchrun --nnodes 4 t.py", "--nodes 4 --partition gpu -J llm", "torchrun --nnodes 4 t.py"),
    ("-K -u python t.py", "-K -u", "python t.py"),
    ("-K1 -u python t.py", "-K1 -u", "python t.py"),
    ("-K 1 python t.py", "-K", "1 python t.py"),  # an optional value is never the next word
    ("--kill-on-bad-exit=1 python t.py", "--kill-on-bad-exit=1", "python t.py"),
    ("--kill-on-bad-exit 1", "--kill-on-bad-exit", "1"),
    ("--exclusive -c 16 --cpu-bind cores --mem=0 a", "--exclusive -c 16 --cpu-bind cores --mem=0", "a"),
    ("--pty bash -i", "--pty", "bash -i"),
    ("--pty=3 bash", "--pty=3", "bash"),
    ("-w n1,n2 -x n3 --overlap --jobid 17 hostname", "-w n1,n2 -x n3 --overlap --jobid 17", "hostname"),
    ("-o 'out %j.txt' -e err --export=ALL,A='b c' a", "-o 'out %j.txt' -e err --export=ALL,A='b c'", "a"),
    ("-l -- python -u t.py", "-l", "python -u t.py"),
    ("-- -odd-name -N3", "", "-odd-name -N3"),
    ("-l -- -- a", "-l", "-- a"),
    ("-l - a", "-l", "- a"),
    ("-J -N4 -l a", "-J -N4 -l", "a"),  # a required value is the next word, whatever it is
    ("-J -- a", "-J --", "a"),
    ("-J : a", "-J :", "a"),
    ("--ntasks-per-n=8 --part gpu a", "--ntasks-per-n=8 --part gpu", "a"),
    ("--tasks 8 a", "--tasks 8", "a"),
    ("--multi-prog -n4 conf", "--multi-prog -n4", "conf"),
    ("--mpi=pmix --network=single_node_vni -t 1-0:00 a", "--mpi=pmix --network=single_node_vni -t 1-0:00", "a"),
    ("--signal=R:USR1@60 --comment 'a -N5 b' a", "--signal=R:USR1@60 --comment 'a -N5 b'", "a"),
    ("--container-image nvcr.io#nvidia/pytorch --container-mounts /a:/b --no-container-mount-home a",
     "--container-image nvcr.io#nvidia/pytorch --container-mounts /a:/b --no-container-mount-home", "a"),
    ("--container=/oci --container-id=7 a", "--container=/oci --container-id=7", "a"),
    ("-N= a", "-N=", "a"),
    ("--label=yes a", "--label=yes", "a"),  # srun refuses that itself
    ("--version", "--version", ""),
    ("-N4", "-N4", ""),
    ("", "", ""),
    ("python train.py --ft-policy mine -- x", "", "python train.py --ft-policy mine -- x"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "options", "command"), ONE_COMPONENT)
def test_options_end_where_srun_ends_them(line, options, command):
    assert split(line) == CommandLine((), (Component(words(options), words(command)),))


# line, ftrun's own options, what is left for srun
WITH_FT = [
    ("--ft-policy=p.yaml -N4 a", "--ft-policy=p.yaml", "-N4 a"),
    ("--ft-policy p.yaml -N4 a", "--ft-policy=p.yaml", "-N4 a"),
    ("-N4 --ft-policy p.yaml -n 8 a", "--ft-policy=p.yaml", "-N4 -n 8 a"),
    ("-N4 --ft-dry-run a", "--ft-dry-run", "-N4 a"),
    ("--ft-dry-run --ft-spares 2 -- a --ft-x", "--ft-dry-run --ft-spares=2", "a --ft-x"),
    ("-N4 python t.py --ft-policy=p", "", "-N4 python t.py --ft-policy=p"),
    ("-N4 -- --ft-policy=p", "", "-N4 -- --ft-policy=p"),
    ("-J --ft-policy a", "", "-J --ft-policy a"),  # the value of -J
    ("--ft-policy= a", "--ft-policy=", "a"),
    ("--ft-policy -N4 a", "--ft-policy=-N4", "a"),
    ("--ft-policy 'a=b c' a", "'--ft-policy=a=b c'", "a"),
    ("--ft-dry-run=yes a", "--ft-dry-run=yes", "a"),
    ("--ft-a 1 -N1 a : --ft-b 2 -N2 --ft-explain b", "--ft-a=1 --ft-b=2 --ft-explain", "-N1 a : -N2 b"),
]


@pytest.mark.parametrize(("line", "ft", "left"), WITH_FT)
def test_ft_options_are_taken_out_before_the_program_only(line, ft, left):
    got = split(line)
    assert got.ft == words(ft)
    assert join_components(got.components) == words(left)


@pytest.mark.parametrize("spelling", ["dry-run", "ft-dry-run", "--ft-dry-run"])
def test_flags_may_be_named_in_any_of_three_ways(spelling):
    got = split_command_line(["--ft-dry-run", "a"], frozenset({spelling}))
    assert (got.ft, got.components[0].command) == (("--ft-dry-run",), ("a",))


HETEROGENEOUS = [
    ("-n1 a : -n2 b", [("-n1", "a"), ("-n2", "b")]),
    ("-n1 a x : -l -n2 b y : c", [("-n1", "a x"), ("-l -n2", "b y"), ("", "c")]),
    ("-n1 -- a : -n2 -- b", [("-n1", "a"), ("-n2", "b")]),
    ("-n1 bash -c : -n2 b", [("-n1", "bash -c"), ("-n2", "b")]),  # srun takes it out of the arguments too
    ("a:b : c ::", [("", "a:b"), ("", "c ::")]),
    ("-n1 : b", [("-n1", ""), ("", "b")]),
    ("a :", [("", "a"), ("", "")]),
    (": a", [("", ""), ("", "a")]),
    ("-J : a : b", [("-J :", "a"), ("", "b")]),
]


@pytest.mark.parametrize(("line", "components"), HETEROGENEOUS)
def test_a_lone_colon_starts_the_next_component(line, components):
    expected = tuple(Component(words(options), words(command)) for options, command in components)
    assert split(line).components == expected
    assert split_command_line(join_components(expected), FT_FLAGS).components == expected


UNKNOWN = [
    ("--new-thing=3 -N4 a", "--new-thing", "--new-thing=3 -N4", "a"),
    ("--new-thing -N4 a", "--new-thing", "--new-thing -N4", "a"),
    ("--new-thing 3 a", "--new-thing", "--new-thing", "3 a"),
    ("-lyN4 a", "-y", "-lyN4", "a"),
    ("--new=1 -l --other a", "--new --other", "--new=1 -l --other", "a"),
]


@pytest.mark.parametrize(("line", "unknown", "options", "command"), UNKNOWN)
def test_an_unknown_option_is_passed_on_and_told(line, unknown, options, command):
    assert split(line) == CommandLine((), (Component(words(options), words(command)),), words(unknown))


REFUSED = [
    ("--nod=4 a", "ambiguous: --nodefile, --nodelist, --nodes"),
    ("--ntasks-per=8 a", "ambiguous"),
    ("--=8 a", "ambiguous"),
    ("-N1 a : --cpu 3 b", "ambiguous"),
    ("-l -N", "-N needs a value"),
    ("-lN", "-N needs a value"),
    ("--nodes", "--nodes needs a value"),
    ("--ft-policy", "--ft-policy needs a value"),
    ("-N1 a : -n", "-n needs a value"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_cannot_be_read_is_refused(line, message):
    with pytest.raises(UsageError) as refused:
        split(line)
    assert message in refused.value.message
    assert refused.value.hint


VALUES = [
    ("-N4", "4"),
    ("-N 4", "4"),
    ("-lN4", "4"),
    ("-lN 4", "4"),
    ("--nodes=4", "4"),
    ("--nodes 4", "4"),
    ("--nodes=", ""),
    ("-N2 --nodes=3 -N 4", "4"),
    ("-n8", None),
    ("-J -N4", None),
    ("", None),
]


@pytest.mark.parametrize(("options", "value"), VALUES)
def test_the_last_value_in_any_spelling_counts(options, value):
    assert option_value(words(options), "N", "nodes") == value
    assert option_value(words(options), "N") == option_value(words(options), "nodes")
    assert has_flag(words(options), "nodes") == (value is not None)


def test_an_optional_value_may_be_missing():
    assert option_value(("-K1",), "kill-on-bad-exit") == "1"
    assert option_value(("-K1", "-K"), "kill-on-bad-exit") is None
    assert has_flag(("-vK",), "K")


def test_synonyms_and_abbreviations_are_one_option():
    options = ("--tasks-per-node=8", "--ntasks-per-n", "4", "--cpu_bind=cores", "--tasks", "2")
    assert parse_options(options) == (
        ("ntasks-per-node", "8"), ("ntasks-per-node", "4"), ("cpu-bind", "cores"), ("ntasks-per-node", "2"))  # fmt: skip
    assert option_value(options, "tasks-per-node") == "2"


def test_unknown_options_are_found_by_the_name_given():
    options = ("--new=3", "-y", "--container-image", "x.sqsh")
    assert parse_options(options) == (("new", "3"), ("y", None), ("container-image", "x.sqsh"))
    assert option_value(options, "new") == "3"


def test_a_stray_word_is_no_option():
    for stray in ("4", "--", "-"):
        with pytest.raises(UsageError):
            parse_options(("-N4", stray, "-l"))


WITHOUT = [
    ("-N4 -l", "N", "-l"),
    ("-N 4 -l", "N", "-l"),
    ("-lN2", "nodes", "-l"),
    ("-lN 2 -u", "nodes", "-l -u"),
    ("-lvN 2", "v", "-lN 2"),
    ("-lvN2", "v", "-lN2"),
    ("-lvvN2", "v l N", ""),
    ("-K1 -K -lK --kill-on-bad-exit=0 -u", "K", "-l -u"),
    ("--nodes=2 --nodes 3 -N4 --ntasks 4", "nodes", "--ntasks 4"),
    ("--tasks-per-node=2 -n 3", "ntasks-per-node", "-n 3"),
    ("-J -N4 -N 2", "N", "-J -N4"),
    ("--new=1 -l --new", "new", "-l"),
    ("-l", "N", "-l"),
]


@pytest.mark.parametrize(("options", "names", "left"), WITHOUT)
def test_an_option_is_removed_in_every_spelling(options, names, left):
    assert without(words(options), *names.split()) == words(left)


def test_the_tables_agree_with_each_other():
    known = srun_options()
    assert {option.of for option in known.values()} == {"both", "job", "step", "plugin"}
    assert all(known[option.means].means == option.means for option in known.values())
    assert all((known[option.means].takes, known[option.means].of) == (option.takes, option.of) for option in known.values())
    assert len(by_letter()) == sum(option.letter != "-" for option in known.values()) == 42


# What random command lines are made of: every spelling, the corner cases, and words that look like options and are not.
FRAGMENTS = (
    "-N4 -N -lN2 -lN -l -K -K1 -lK -lKl -vvv -n -n8 -uW0 --nodes=4 --nodes --label --kill-on-bad-exit --kill=1 --nodes= "
    "--ntasks-per-node --ntasks-per-n=8 --tasks=2 --excl --exclusive=user --pty --cpu_bind=no --mpi=none -J --job-name "
    "4 prog a=b 4 prog -- - --nod --bogus -y --overlap --het-g 0 -I60 -I --immediate=5 -= --ft --lab"
).split()


def random_lines(count, fragments):
    chance = random.Random(17)
    return [[chance.choice(fragments) for _ in range(chance.randrange(9))] for _ in range(count)]


def readable(argv):
    try:
        return split_command_line(argv, frozenset())
    except UsageError:
        return None


@pytest.mark.parametrize("seeded", [random_lines(3000, [*FRAGMENTS, ":", ":"])], ids=["3000 lines"])
def test_nothing_is_lost_and_nothing_invented(seeded):
    for argv in seeded:
        if line := readable(argv):
            assert readable(join_components(line.components)) == line
            for component in line.components:
                assert without(component.options) == component.options
                names = {name for name, _ in parse_options(component.options)}
                assert without(component.options, *names) == ()
                assert not any(has_flag(without(component.options, name), name) for name in names)


HAS_ARG = {Takes.NOTHING: 0, Takes.VALUE: 1, Takes.OPTIONAL: 2}
COLONS = {Takes.NOTHING: "", Takes.VALUE: ":", Takes.OPTIONAL: "::"}


class GetoptOption(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("has_arg", ctypes.c_int), ("flag", ctypes.c_void_p), ("val", ctypes.c_int))


class Getopt:
    """getopt_long(3) of glibc with our table, set up as srun's slurm_option_table_create does it."""

    def __init__(self):
        self.libc = ctypes.CDLL(None)
        known = [option for option in srun_options().values() if option.of != "plugin"]
        letters = {option.name: letter for letter, option in by_letter().items()}
        meant = sorted({option.means for option in known})
        self.values = {name: ord(letters[name]) if name in letters else 1000 + i for i, name in enumerate(meant)}
        self.names = {value: name for name, value in self.values.items()}
        rows = [(each.name.encode(), HAS_ARG[each.takes], None, self.values[each.means]) for each in known]
        self.table = (GetoptOption * (len(rows) + 1))(*rows, (None, 0, None, 0))
        self.short = "+" + "".join(letter + COLONS[option.takes] for letter, option in by_letter().items())

    def read(self, argv):
        """The options and the words after them, or None if getopt refuses one."""
        given = []
        vector = (ctypes.c_char_p * (len(argv) + 2))(b"srun", *(word.encode() for word in argv), None)
        ctypes.c_int.in_dll(self.libc, "optind").value = 0  # 0 starts afresh, GNU's own rule
        ctypes.c_int.in_dll(self.libc, "opterr").value = 0
        while (value := self.libc.getopt_long(len(argv) + 1, vector, self.short.encode(), self.table, None)) != -1:
            if value == ord("?"):
                return None
            argument = ctypes.c_char_p.in_dll(self.libc, "optarg").value
            given.append((self.names[value], None if argument is None else argument.decode()))
        return given, argv[ctypes.c_int.in_dll(self.libc, "optind").value - 1 :]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="srun reads with glibc's getopt_long; there is none here")
@pytest.mark.parametrize("seeded", [random_lines(20000, FRAGMENTS)], ids=["20000 lines"])
def test_getopt_long_reads_the_same(seeded):
    getopt = Getopt()
    agreed = 0
    for argv in seeded:
        expected = getopt.read(argv)
        line = readable(argv)
        if expected is None:
            continue  # for srun to refuse; what we refuse first is told above
        options, rest = expected
        assert line is not None and not line.unknown, argv
        assert list(parse_options(line.components[0].options)) == options, argv
        assert line.components[0].command == tuple(rest), argv
        agreed += 1
    assert agreed > 5000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="srun reads with glibc's getopt_long; there is none here")
def test_getopt_long_accepts_and_refuses_the_same_abbreviations():
    getopt = Getopt()
    plugins = {option.name for option in srun_options().values() if option.of == "plugin"}
    prefixes = {name[:end] for name in srun_options().keys() - plugins for end in range(1, len(name))}
    for prefix in prefixes - plugins:
        assert (getopt.read([f"--{prefix}=1"]) is None) == (not accepts(f"--{prefix}=1")), prefix


def accepts(word):
    """A value where none may follow is the one thing we leave to srun although getopt refuses it."""
    if (line := readable([word])) is None:
        return False
    [(name, _)] = parse_options(line.components[0].options)
    return srun_options()[name].takes is not Takes.NOTHING


def test_an_agent_s_own_srun_is_not_taken_for_one_that_stands_in_for_srun() -> None:
    from ftslurm.launchers.srun import own_step_env
    from ftslurm.system.commands import MARK, mistaken_for

    agent = {MARK: "7. /usr/bin/srun", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}
    assert mistaken_for(agent) == () == mistaken_for(own_step_env(agent))


@pytest.mark.parametrize(
    ("options", "others_end", "told"),
    [
        ("-n2 -K", True, 0),
        ("-n2 -K1 --wait=0", True, 0),
        ("-n2 --kill-on-bad-exit=0", True, 1),
        ("-n2 -K0", False, 0),
        ("-n2 -W30 -K0", True, 1),
    ],
)
def test_what_srun_would_do_and_ftrun_does_not_is_told(options: str, others_end: bool, told: int) -> None:
    from ftslurm.launchers.srun import overruled

    assert len(overruled(tuple(options.split()), others_end)) == told


def test_a_user_s_verbose_srun_does_not_make_ours_verbose_which_are_quiet() -> None:
    """srun: don't specify both --verbose (-v) and --quiet (-Q)."""
    from ftslurm.launchers.srun import beside_argv, own_step_env

    assert "--quiet" in beside_argv(["n1"], "ftslurm-look", ["true"])
    assert own_step_env({"SLURM_DEBUG": "1", "SLURM_JOB_ID": "7"}) == {"SLURM_JOB_ID": "7"}
