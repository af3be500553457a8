"""The site and the manual pages, built as `make docs` and `make man` build them: no warning, nothing left out, fit for any window."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import click
import manual_pages
import pictures
import pytest
import reference
import schemas

from ftslurm import errors
from ftslurm.cli.ftslurm import group
from ftslurm.config.catalog_files import load_glossary, load_pattern_book
from ftslurm.model.record import KINDS
from ftslurm.model.settings import hook_settings
from ftslurm.model.settings import tree as settings
from ftslurm.policies.site import JUDGES
from tests.report import browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# One page of each kind; what fits a telephone seldom fails to fit a screen.
WIDE = ("index", "patterns", "settings", "comparison")
# Variables between processes of ftslurm's own; they may change at any time.
INTERNAL = {
    "FTSLURM_CALLED", "FTSLURM_CHANNEL", "FTSLURM_CLAIM", "FTSLURM_CONTROL_BY", "FTSLURM_LD_AUDIT", "FTSLURM_LD_PRELOAD",
    "FTSLURM_LOCAL", "FTSLURM_LOCAL_JOB", "FTSLURM_LOCAL_NODES", "FTSLURM_LOCAL_STEP",
}  # fmt: skip
# One worker builds it, for all.
pytestmark = [pytest.mark.xdist_group("site"), pytest.mark.timeout(600)]  # 8 s alone; ten times that where others compute


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """html/ and man/."""
    folder = tmp_path_factory.mktemp("site")
    for builder in ("html", "man"):
        argv = [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-b",
            builder,
            "-d",
            folder / "read",
            DOCS,
            folder / builder,
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, f"{builder}:\n{done.stdout}{done.stderr}"
    return folder


def test_the_pictures_are_those_that_the_script_draws() -> None:
    assert pictures.main(["--check"]) == 0, "run tools/pictures.py"
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == {*pictures.PICTURES}


def text_of(built: Path, page: str) -> str:
    html = (built / "html" / f"{page}.html").read_text()
    return unescape(re.sub(r"<[^>]+>", "", html))


def test_every_page_is_in_the_site(built: Path) -> None:
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    assert [page for page in pages if not (built / "html" / page).exists()] == []


def test_the_reference_has_all_that_the_code_has(built: Path) -> None:
    wanted = {
        "settings": settings.LEAVES,
        "hooks": hook_settings.LEAVES,
        "records": [*KINDS, *(field for kind in KINDS.values() for field in kind.__dataclass_fields__)],
        "exit-statuses": [str(status) for status in statuses()],
        "environment": [*variables(), *reference.TORCH, *reference.NVRX],
        "patterns": [pattern.id for pattern in load_pattern_book().patterns if pattern.pattern],
        "codes": ["80E01801", "XID 79", "ECC-UNCORRECTABLE"],
        "checks": list(JUDGES),
        "json": list(schemas.SHAPES),
        "profiles": [f"{name}" for name in reference.PROFILES],
        "ftslurm": group.list_commands(click.Context(group)),
        "ftrun": ["--ft-policy", "--ft-set", "--ft-spares"],
        "ft_launcher": ["--max-restarts", "--ft-rank-heartbeat-timeout"],
    }
    for page, names in wanted.items():
        text = text_of(built, f"reference/{page}")
        assert [name for name in names if name not in text] == [], page
    assert {f"{path.stem}" for path in (DOCS / "reference").glob("*.md")} == set(wanted)


def test_the_settings_begin_with_their_tables_and_a_manual_page_has_none(built: Path) -> None:
    text = text_of(built, "reference/settings")
    first, every, details = map(
        text.index, ("The ten that people need first", "All, to scan", "Order in which the rungs are tried")
    )
    assert first < every < details
    assert "ten that people need" not in (built / "man" / "ftslurm-settings.5").read_text()


def statuses() -> set[int]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FtslurmError)]
    return {kind.exit_status for kind in kinds} | {errors.REQUEUED_STATUS}


@pytest.mark.parametrize(("page", "name", "what", "section"), manual_pages.PAGES, ids=lambda value: str(value))
def test_a_manual_page_has_its_name_and_is_troff(built: Path, page: str, name: str, what: str, section: int) -> None:
    source = built / "man" / f"{name}.{section}"
    text = source.read_text()
    assert f'.TH "{name.upper()}" "{section}"' in text
    assert f"{name} \\- {what}" in text
    if groff := shutil.which("groff"):
        done = subprocess.run(
            [groff, "-man", "-t", "-Tutf8", "-z", source], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0 and not done.stderr


def literals(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def variables(kind: str = "variable") -> set[str]:
    """Of the glossary."""
    return {name for known, words in load_glossary().words.items() if known.startswith(kind) for name in words}


def test_each_variable_that_the_code_names_is_in_the_reference_or_internal() -> None:
    named = {word for path in (ROOT / "ftslurm").rglob("*.py") for word in literals(path)}
    ours = {word for word in named if re.fullmatch(r"(FTSLURM|FTRUN|MA|C4D)_[A-Z0-9_]*[A-Z0-9]", word)}
    listed = variables() | INTERNAL
    assert ours - listed - {settings.env_name(name) for name in settings.LEAVES} == set()
    assert listed - variables("variable that ftrun reads") - ours == set()


@pytest.mark.skipif(not browser.find(), reason="no Chromium")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["wide", "every"])
def test_in_a_browser_pages_fit_a_wide_and_a_narrow_window_and_ask_no_network(built: Path, tmp_path: Path, every: bool) -> None:
    program = browser.find()
    assert program
    window = browser.Browser(program, tmp_path, timeout_s=500)
    try:
        for path in sorted(path for path in (built / "html").rglob("*.html") if every or path.stem in WIDE):
            for width in (390, 1280) if path.stem in WIDE else (390,):
                window.show(path, width)
                wide = window.evaluate("document.documentElement.scrollWidth")
                room = window.evaluate("document.documentElement.clientWidth")
                assert wide <= room, f"{path.name} is {wide} wide where {room} are"
                if (path.stem, width) == ("comparison", 1280):
                    over = "[...document.querySelectorAll('.table-wrapper')].filter(e => e.scrollWidth > e.clientWidth).length"
                    assert window.evaluate(over) == 0, "a table scrolls beside the contents"
                asked = [event for event in window.events if event.get("method") == "Network.requestWillBeSent"]
                urls = [event["params"]["request"]["url"] for event in asked]
                assert [url for url in urls if not url.startswith(("file:", "data:"))] == []
                told = [event for event in window.events if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
                assert told == [], path.name
    finally:
        window.close()
