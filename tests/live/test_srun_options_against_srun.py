"""Our table of options against the srun that is installed.

No cluster is needed: srun judges its options before it looks for one. Run so on 22.05, 24.11 and 26.05.
"""

import os
import random
import re
import shutil
import string
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftslurm.launchers.srun_options import Takes, by_letter, names_of, parse_options, split_command_line, srun_options

pytestmark = pytest.mark.slurms

SRUN_OPTIONS = {option.name: option.takes for option in srun_options().values() if option.of != "plugin"}
SHORT_OPTIONS = {letter: option.name for letter, option in by_letter().items()}
STEP_ONLY = set(names_of("step"))

# srun reads its configuration even for --help. Nobody listens at the controller's address, and nothing here gets that far.
SLURM_CONF = """
ClusterName=none
SlurmctldHost=localhost
TaskPlugin=task/affinity
NodeName=localhost
PartitionName=all Nodes=ALL Default=YES
"""
BOGUS = "--no-such-option"  # getopt stops srun here, unless an option before it takes it for its value
UNRECOGNIZED = f"unrecognized option '{BOGUS}'"


@dataclass(frozen=True)
class Srun:
    path: str
    conf: Path

    def __call__(self, *argv: str) -> str:
        """All it says, on stdout and stderr."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SRUN"))}
        env["SLURM_CONF"] = str(self.conf)
        answer = subprocess.run([self.path, *argv], env=env, capture_output=True, text=True, timeout=20, check=False)
        return answer.stdout + answer.stderr


@pytest.fixture(scope="module")
def srun(tmp_path_factory: pytest.TempPathFactory) -> Srun:
    path = shutil.which("srun")
    if path is None and os.environ.get("FTSLURM_REQUIRE_SLURM") == "1":
        pytest.fail("srun is not installed, and FTSLURM_REQUIRE_SLURM=1 says it must be")
    if path is None:
        pytest.skip("srun is not installed: its options were compared with nothing")
    conf = tmp_path_factory.mktemp("etc") / "slurm.conf"
    conf.write_text(SLURM_CONF)
    return Srun(path, conf)


def options_in_help(text: str) -> dict[str, tuple[str, str]]:
    """Long name -> (letter or "", what stands behind the name) for every option line of `srun --help`."""
    lines = re.findall(r"^ {2}(?:-(\w),? |    ) *--([\w-]+)(\S*)", text, re.MULTILINE)
    return {name: (letter, behind) for letter, name, behind in lines}


def options_in_complaints(srun: Srun) -> set[str]:
    """getopt_long tells all it knows, documented or not, when an abbreviation is ambiguous."""
    answers = "".join(srun(f"--{letter}", BOGUS) for letter in string.ascii_lowercase)
    lists = re.findall(r"ambiguous; possibilities: (.*)", answers)
    return {name for names in lists for name in re.findall(r"'--([\w-]+)'", names)}


def takes(srun: Srun, option: str) -> Takes:
    """What srun lets the long option take, found out by trying."""
    if "doesn't allow an argument" in srun(f"--{option}=x", BOGUS):
        return Takes.NOTHING
    return Takes.OPTIONAL if UNRECOGNIZED in srun(f"--{option}", BOGUS) else Takes.VALUE


def agrees(ours: Takes | None, theirs: Takes) -> bool:
    """The table spans versions and holds the wider reading: what takes nothing here may take an optional value elsewhere."""
    return ours is theirs or (ours is Takes.OPTIONAL and theirs is Takes.NOTHING)


def test_help_shows_no_option_that_we_lack(srun: Srun) -> None:
    shown = options_in_help(srun("--help"))
    assert len(shown) > 100
    assert not shown.keys() - SRUN_OPTIONS.keys()
    assert {letter: name for name, (letter, _) in shown.items() if letter}.items() <= SHORT_OPTIONS.items()
    # What the help says of values is not the whole truth (--bcast=path may stand alone); trying every option, below, tells.
    with_value = {name for name, (_, behind) in shown.items() if behind.startswith(("=", "[="))}
    optional = {name for name, (_, behind) in shown.items() if behind.startswith("[=")}
    assert not {name for name in with_value if SRUN_OPTIONS[name] is Takes.NOTHING}
    assert not {name for name in optional if SRUN_OPTIONS[name] is not Takes.OPTIONAL}


def test_usage_shows_no_short_option_that_we_lack(srun: Srun) -> None:
    with_value = set(re.findall(r"\[-(\w) [\w.]+\]", srun("--usage")))
    assert "N" in with_value
    assert all(SRUN_OPTIONS[SHORT_OPTIONS[letter]] is Takes.VALUE for letter in with_value)


def test_every_long_option_takes_what_our_table_says(srun: Srun) -> None:
    known = options_in_complaints(srun) | options_in_help(srun("--help")).keys()
    assert len(known) > 120
    found = {name: takes(srun, name) for name in known}
    assert {name: theirs for name, theirs in found.items() if not agrees(SRUN_OPTIONS.get(name), theirs)} == {}


# salloc has the first for itself: where it runs, and what of. The tasks shall. The others it takes on some releases, to no end.
WITHHELD = frozenset({"chdir", "container", "container-id", "autocomplete", "mem-update", "resv-ports"})


def test_salloc_takes_every_option_that_is_not_the_step_s(srun: Srun) -> None:
    """Outside an allocation it is given all others."""
    salloc = Srun(str(Path(srun.path).with_name("salloc")), srun.conf)
    known, taken = (options_in_complaints(each) | options_in_help(each("--help")).keys() for each in (srun, salloc))
    assert len(taken) > 80
    assert known - STEP_ONLY - taken == set()
    assert STEP_ONLY & taken <= WITHHELD


def test_every_letter_takes_what_our_table_says(srun: Srun) -> None:
    for letter in string.ascii_letters:
        answer = srun(f"-{letter}", BOGUS)
        assert ("invalid option" in answer) == (letter not in SHORT_OPTIONS), letter
        if letter in SHORT_OPTIONS and letter not in "hV":  # these two end srun on the spot
            consumed = UNRECOGNIZED not in answer
            assert consumed == (SRUN_OPTIONS[SHORT_OPTIONS[letter]] is Takes.VALUE), letter


def defined_options(srun: Srun, argv: list[str]) -> list[dict[str, str]]:
    """What `srun -v` understood, one table a component. The bogus component at the end keeps it from going further."""
    answer = srun("-v", *argv, ":", BOGUS)
    assert UNRECOGNIZED in answer, answer
    blocks = re.findall(r"srun: defined options\n(.*?)srun: end of defined options", answer, re.DOTALL)
    return [dict(re.findall(r"^srun: ([\w-]+) +: (.*)$", block, re.MULTILINE)) for block in blocks]


# Options that `srun -v` prints as they were given and checks little; flags print as "set".
PER_COMPONENT = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "partition")
STICKY = ("account", "job-name", "label", "unbuffered")  # in later components too (no reset_each_pass in slurm_opt.c)


def understood(options: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    return {name: "set" if value is None else value for name, value in parse_options(options) if name in names}


def agree(srun: Srun, argv: list[str]) -> None:
    components = split_command_line(argv, frozenset()).components
    theirs = defined_options(srun, argv)
    assert len(theirs) == len(components)
    kept: dict[str, str] = {}
    for component, defined in zip(components, theirs, strict=True):
        kept |= understood(component.options, STICKY)
        ours = kept | understood(component.options, PER_COMPONENT)
        assert ours == {name: value for name, value in defined.items() if name in PER_COMPONENT + STICKY}


LINES = [
    "-N4 --ntasks-per-node=8 python train.py -N 3",
    "-lN2 -n 8 bash -c a",
    "-K -u -n3 prog",
    "-K 1 -n3",
    "-K1 -n3 prog -l",
    "-uN 4 -- prog -l",
    "-J -N4 -N 2 prog",
    "-J -- -N2 prog",
    "-J : -N2 prog",
    "--ntasks-per-n=8 --acco me --part all prog",
    "--tasks 8 prog",
    "--exclusive -n2 prog --exclusive",
    "-- prog -N4",
    "-N2 - -l",
    "-n1 a : -n2 b",
    "-n1 a x : -lN2 -n2 b -N3 : -u c",
    "-n1 bash -c : -n2 b",
    "-n1 a -- : -n2 b",
]


@pytest.mark.parametrize("line", LINES)
def test_srun_understands_the_same(srun: Srun, line: str) -> None:
    agree(srun, line.split())


SPELLINGS = (
    "-N4", "-N 3", "--nodes=2", "--nodes 5", "-lN2", "-luN 6", "-n8", "-n 9", "--ntasks=7", "--cpus-per-t 2", "-c2",
    "-l", "-u", "-lu", "--label", "--unbuf",
    "-K", "-K1", "--kill=0", "-uK0", "-p all", "--part=all", "-A me", "-Jname", "-J -l", "--job-n -u",
    "prog", "-- prog", "prog : -n2 other", "4",
)  # fmt: skip


def random_argv(chance: random.Random) -> list[str]:
    return [word for _ in range(chance.randrange(1, 6)) for word in chance.choice(SPELLINGS).split()] + ["prog"]


def test_srun_understands_the_same_of_random_lines(srun: Srun) -> None:
    chance = random.Random(17)
    for _ in range(200):
        argv = random_argv(chance)
        agree(srun, argv)
