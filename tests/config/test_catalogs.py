"""The shipped catalogues and a site's own laid over them, from files; what explains a code with both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftslurm.config.catalog_files import load_code_book, load_pattern_book, read_catalog
from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.config.settings_files import read_shipped, read_yaml
from ftslurm.errors import PolicyError
from ftslurm.model.devices import FaultClass, Severity
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import ErrorClass, Retriable
from ftslurm.report.explain.code import Explained
from ftslurm.wrapper.explain_code import Explainer
from tests.settings import settings_with

Write = Callable[[str], str]
EXPLAINER = Explainer(Settings())

SITE = """
devices:
  ascend:
    "80E01801": {class: SeparateNPU}
    "0x80e08099": {class: NotHandle, name: a code of a new driver}
  nvidia:
    79: {remedy: log}
    Xid 999: {remedy: replace_node, name: ours}
    GPU-LOST: {remedy: restart_in_place}
  amd:
    THERMAL: {remedy: exclude_at_next_restart}
patterns:
  - {id: site-licence, name: the licence server is away, class: network, retriable: yes, pattern: 'flexlm: -96', sample: 'E flexlm: -96'}
  - {id: py-value, name: ours, class: data, retriable: no, pattern: 'ValueError: (?:bad|wrong)', sample: 'ValueError: bad'}
remove: [user-interrupt]
exit_codes:
  42: {meaning: the data set is gone, class: data, retriable: no}
  1: {meaning: whatever, class: unknown, retriable: once, isolate: suspect}
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str, name: str = "site.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return put


def test_a_site_has_the_last_word_on_codes(write: Write) -> None:
    book = load_code_book((write(SITE),))
    for kind, code, graded in (
        ("ascend", "80E01801", FaultClass.ISOLATE),
        ("ascend", "80E08099", FaultClass.IGNORE),
        ("nvidia", "Xid 79", FaultClass.IGNORE),
        ("nvidia", "XID 999", FaultClass.ISOLATE),
        ("nvidia", "GPU-LOST", FaultClass.SELF_HEALING),
        ("amd", "THERMAL", FaultClass.AVOID),
        ("amd", "GPU-LOST", FaultClass.ISOLATE),
    ):
        assert book.meaning(kind, code, Severity.CRITICAL).fault_class is graded, code
    assert book.meaning("ascend", "80E08099", Severity.UNKNOWN).name == "a code of a new driver"
    assert book.meaning("nvidia", "XID 79", Severity.UNKNOWN).name == "GPU fell off the bus"


def test_a_site_has_the_last_word_on_lines_and_statuses(write: Write) -> None:
    book = load_pattern_book((write(SITE),))
    found = book.scan(b"E flexlm: -96\nValueError: bad\nValueError: other\nKeyboardInterrupt\n")
    assert [hit.pattern.id for hit in found] == ["site-licence", "py-value"]
    assert found[0].pattern.retriable is Retriable.YES and found[1].pattern.retriable is Retriable.NO
    assert found[1].pattern.error_class is ErrorClass.DATA
    assert book.exit(42).meaning == "the data set is gone" and book.exit(1).retriable is Retriable.ONCE
    assert len(book.patterns) == len(load_pattern_book().patterns) + 1 - 1


def test_later_files_stand_on_earlier_ones(write: Write) -> None:
    first = write("devices: {nvidia: {79: {remedy: log}}}\nexit_codes: {3: {meaning: a, class: data, retriable: no}}", "a.yaml")
    second = write("devices: {nvidia: {79: {remedy: fail}}}", "b.yaml")
    assert load_code_book((first, second)).meaning("nvidia", "XID 79", Severity.UNKNOWN).fault_class is FaultClass.ISOLATE
    assert load_pattern_book((first, second)).exit(3).meaning == "a"


def test_an_empty_file_changes_nothing(write: Write) -> None:
    assert load_pattern_book((write(""),)).patterns == load_pattern_book().patterns
    laid_over, shipped = load_code_book((write("# nothing yet\n"),)).catalogs, load_code_book().catalogs
    assert all(laid_over[kind].entries == shipped[kind].entries for kind in shipped)


def test_the_codes_that_ftrun_asks_for_come_from_the_same_files(write: Write) -> None:
    meaning = fault_lookup(("xid48",), (write(SITE),))
    assert meaning("ascend", "80E01801", Severity.UNKNOWN).fault_class is FaultClass.ISOLATE
    assert meaning("nvidia", "XID 48", Severity.UNKNOWN).user_induced
    assert meaning("toaster", "1", Severity.UNKNOWN).fault_class is FaultClass.UNKNOWN


PATTERN = "{id: a, name: b, class: data, retriable: no, pattern: 'x%sy', sample: 'xy'}"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "devices: {ascend: {'80E01801': {class: Explode}}}",
            "`ascend`, `80E01801`: `class` is 'Explode', it should be one of NotHandle",
        ),
        ("devices: {ascend: {HBM: {class: NotHandle}}}", "`ascend`: `HBM` is not a fault code"),
        ("devices: {ascend: {80818200: {class: NotHandle}}}", "put it in quotes"),
        ("devices: {nvidia: {79: {}}}", "`nvidia`, `79`: `remedy` is missing"),
        ("devices: {nvidia: {79: {remedy: pray}}}", "`nvidia`, `79`: `remedy` is 'pray'"),
        ("nvidia: {79: {remedy: log}}", "there is no `nvidia` here"),
        ("patterns: {id: a}", "`patterns` should be a list"),
        (f"patterns: [{PATTERN % '('}]", "`a`: its `pattern` is refused by RE2"),
        (f"patterns: [{PATTERN % '.*'}]", "`a`: its `pattern` may span a line"),
        (f"patterns: [{PATTERN % 'z'}]", "`a`: its `pattern` does not match its `sample`"),
        (f"patterns: [{PATTERN % ''}, {PATTERN % ''}]", "`a` is in `patterns` twice"),
        ("patterns: [{id: a, class: data}]", "`patterns`, `a`: `retriable` is missing"),
        ("patterns: [3]", "`patterns`: `0` should be a table"),
        ("remove: [cuda-oon]", "`remove`: there is no pattern `cuda-oon`; did you mean `cuda-oom`"),
        ("exit_codes: {256: {meaning: a, class: data, retriable: no}}", "`exit_codes`: `256`"),
        ("exit_codes: {3: {meaning: a, class: date, retriable: no}}", "`exit_codes`, `3`: `class` is 'date'"),
        ("pattern: []", "there is no `pattern` here; did you mean `patterns`"),
        ("- a\n- b", "the file should be a table"),
        ("nvidia: {79: {remedy: log}, 79: {remedy: fail}}", "line 1: `nvidia.79` is here twice"),
        ("a: [", ", line 2: "),
        ("a: &x [*x]", "not YAML: maximum recursion depth exceeded"),
        ("? {a: 1}\n: b", "site.yaml"),
        ("schema_version: 2", "`schema_version` is 2, it should be 1"),
    ],
)
def test_a_wrong_file_gets_one_sentence_with_file_and_entry(write: Write, text: str, named: str) -> None:
    path = write(text)
    with pytest.raises(PolicyError) as error:
        load_pattern_book((path,))
        load_code_book((path,))
    told = str(error.value)
    assert named in told and path in told and "\n" not in told and "pydantic" not in told


@pytest.mark.parametrize(("data", "named"), [(b"\xff\xfe", "not text"), (b"#" * (1 << 20) + b"\n", "larger than 1 MiB")])
def test_files_that_are_no_catalogue(tmp_path: Path, data: bytes, named: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_bytes(data)
    with pytest.raises(PolicyError, match=named):
        load_pattern_book((str(path),))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(PolicyError, match="cannot be read"):
            load_code_book((str(path),))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="{}[]:,-&*!|>'\" \nabcpatternsremove79", max_size=60))
def test_any_text_is_a_catalogue_or_a_policy_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    try:
        assert read_catalog(path)
    except PolicyError as error:
        assert str(path) in str(error) and "\n" not in str(error)


SHIPPED = sorted(path.name for path in files("ftslurm.catalogs").iterdir() if path.name.endswith(".yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_no_key_stands_twice_in_what_ships(name: str) -> None:
    assert read_yaml(files("ftslurm.catalogs").joinpath(name).read_text(), name)[0] == read_shipped(name)


def test_what_ftrun_starts_with_reads_none_of_this() -> None:
    code = (
        "import sys, ftslurm.cli.ftrun, ftslurm.wrapper.controller.run\n"
        "print('ftslurm.policies.judge.judge' in sys.modules)  # loads beside the questions to slurmctld\n"
        "import ftslurm.wrapper.controller.joining\n"
        "late = ('pydantic', 're2', 'ftslurm.config.catalog_files', 'ftslurm.catalogs.patterns', 'ftslurm.catalogs.codes',\n"
        "        'ftslurm.devices.probe', 'ftslurm.slurm.fitting', 'ftslurm.wrapper.requeue.finish', 'ftslurm.wrapper.node_check')\n"
        "print([name for name in late if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n[]\n"


# --- explained


def one(words: str, explainer: Explainer = EXPLAINER) -> Explained:
    (found,) = explainer.words(words.split())
    return found


@pytest.mark.parametrize(
    ("words", "code", "kind", "known"),
    [
        ("80E01801", "80E01801", "Ascend fault code", True),
        ("80E08099", "80E08099", "Ascend fault code", False),
        ("Xid 79", "XID 79", "NVIDIA fault code", True),
        ("xid79", "XID 79", "NVIDIA fault code", True),
        ("Xid 999", "XID 999", "NVIDIA fault code", False),
        ("SXid 24007", "SXID 24007", "NVIDIA fault code", True),
        ("RAS-FATAL", "RAS-FATAL", "AMD fault code", True),
        ("NT_NPU_NET", "NT_NPU_NET", "Ascend fault code", True),
        ("exit 137", "exit 137", "exit status", True),
        ("exit 77", "exit 77", "exit status", False),
        ("SIGSEGV", "exit 139", "exit status", True),
        ("cuda-oom", "cuda-oom", "line of output", True),
        ("507015", "acl-507015", "line of output", True),
        ("RuntimeError: CUDA out of memory.", "cuda-oom", "line of output", True),
        ("hello world", "", "line of output", False),
    ],
)
def test_what_is_asked_for_is_found(words: str, code: str, kind: str, known: bool) -> None:
    found = one(words)
    assert (found.code, found.kind, found.known) == (code, kind, known)
    assert found.name and found.fault and found.does and found.why


def test_a_line_is_explained_with_the_code_it_names() -> None:
    line, code = EXPLAINER.words(["NVRM: Xid (PCI:0000:18:00): 79, pid=7, name=python"])
    assert line.does[0].what == "goes by XID 79, which the line names" and code.name == "GPU fell off the bus"


def test_of_a_text_each_kind_of_line_is_explained_once() -> None:
    found = EXPLAINER.text(b"hello\nValueError: a\nValueError: b\nvia NET/IB/0/GDRDMA\nlm loss: nan\n")
    assert [each.code for each in found] == ["py-value", "gdr-mixed", "nan-loss"]
    assert EXPLAINER.words(["a\nKeyError: b"])[0].code == "py-key"
    (nothing,) = EXPLAINER.text(b"\n\xff\0 nothing at all\n")
    assert not nothing.known and nothing.name == "unknown: would be answered from the unconditional budget"


def test_a_sites_catalogue_and_settings_are_explained(write: Write) -> None:
    explainer = Explainer(
        settings_with(catalogs=(write(SITE),), devices__user_induced=("0x80e18008",), retry__keywords=("flaky",))
    )
    assert one("80E01801", explainer).does[0].rung == "isolated-requeue"
    assert one("80E18008", explainer).fault.startswith("the program's")
    assert one("so flaky today", explainer).code == "keyword:flaky"


@given(st.text(max_size=60))
def test_anything_can_be_explained(text: str) -> None:
    assert EXPLAINER.words([text]) and EXPLAINER.text(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(("line", "name", "fault"), [
    ("RuntimeError: boom", "RuntimeError: an error that no pattern knows", "the program's"),
    ("requests.exceptions.ConnectionError: refused", "ConnectionError: an error that no pattern knows", "the network's"),
    ("loss: 3.2", ": unknown: would be answered from the unconditional budget", "not known from this alone"),
])  # fmt: skip
def test_an_exception_that_no_pattern_knows_is_explained_as_ftrun_takes_it(line: str, name: str, fault: str) -> None:
    """As it would be called if it ended a trace, which ftrun has seen."""
    for (found,) in (EXPLAINER.words(line.split(" ")), EXPLAINER.text(f"\nstep 1\n{line}\n".encode())):
        assert (f"{found.code}: {found.name}", found.fault) == (name, fault)
