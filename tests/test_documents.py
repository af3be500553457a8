"""What the documents name is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pre_commit.clientlib import load_config

from ftslurm.cli.ft_launcher.options import parser
from ftslurm.cli.ftrun_options import options
from ftslurm.config.catalog_files import load_glossary
from ftslurm.model.settings import hook_settings
from ftslurm.model.settings.tree import LEAVES, OTHER_VARIABLES, env_name
from ftslurm.notify.outbox import KINDS
from ftslurm.policies.ladder import Cause

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Folders of the package as the documents shorten them.
PLACES = ("", "ftslurm/")
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|yaml|md|sh))`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_exist(document: Path) -> None:
    text = document.read_text()
    missing = [name for name in PATH.findall(text) if not any((ROOT / place / name).exists() for place in PLACES)]
    missing += [name for name in LINK.findall(text) if not (document.parent / name).exists()]
    assert missing == []


def test_make_has_the_targets_that_documents_name() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for document in DOCUMENTS for name in re.findall(r"`make ([\w-]+)", document.read_text())}
    assert named and not named - targets


def test_the_facts_of_slurm_that_the_code_cites_stand_where_it_says() -> None:
    headings = set(re.findall(r"^## (.*)$", (ROOT / "docs/slurm-facts.md").read_text(), re.MULTILINE))
    cited = []
    for path in (ROOT / "ftslurm").rglob("*.py"):
        text = re.sub(r"\s*\n\s*(?:# )?", " ", path.read_text())
        for found in re.findall(r'docs/slurm-facts\.md[,:] ((?:"[^"]+"(?:, | and )?)+)', text):
            cited += re.findall(r'"([^"]+)"', found)
    assert len(cited) >= 12 and not {*cited} - headings


def test_options_variables_and_settings_that_a_text_names_exist() -> None:
    """In sentences, too: in blocks they are run."""
    known = {word for option in options.params for word in option.opts}
    known |= {word for action in parser({})._actions for word in action.option_strings}
    variables = {*OTHER_VARIABLES, *map(env_name, LEAVES)}
    settings = {*LEAVES, *hook_settings.LEAVES}
    settings |= {name.rpartition(".")[0] for name in settings}
    features = {name.partition(".")[0] for name in LEAVES if "." in name}
    missing = []
    for path in (*DOCUMENTS, *ROOT.glob("sbatch-templates/*")):
        if path.name in ("CHANGELOG.md", "comparison.md"):  # of before; of others
            continue
        text = path.read_text()
        missing += [(path.name, word) for word in re.findall(r"(?<![\w-])--ft-[a-z][\w-]+", text) if word not in known]
        missing += [(path.name, word) for word in re.findall(r"\bFTRUN_[A-Z_]+[A-Z]", text) if word not in variables]
        named = re.findall(r"`([a-z_]+(?:\.[a-z_-]+)+)[`:= ]", text)
        named = [word for word in named if word.partition(".")[0] in features and not word.endswith((".py", ".yaml"))]
        missing += [(path.name, word) for word in named if word not in settings]
    assert {*missing} == {("ARCHITECTURE.md", "nodes.on_node_silent")}, "it is an answer of the judge"


def test_a_variable_is_told_with_all_its_values() -> None:
    words = {name: what for of_kind in load_glossary().words.values() for name, what in of_kind.items()}
    in_text = (ROOT / "docs/programs.md").read_text().partition("`FTSLURM_RESTART_CAUSE`")[2].partition("|")[0]
    for text, values in (
        (words["FTSLURM_RESTART_CAUSE"], [cause.value for cause in Cause]),
        (in_text, [cause.value for cause in Cause]),
        (words["FTSLURM_NOTICE_KIND"], [*KINDS]),
    ):
        assert {*values} - {*re.findall(r"[\w-]+", text)} == set()


def test_what_runs_before_a_commit_is_there() -> None:
    hooks = [hook for repository in load_config(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    assert {hook["id"] for hook in hooks} >= {"ruff", "imports", "mypy"}
    for hook in hooks:
        words = shlex.split(hook["entry"])
        assert words[0].startswith(".venv/bin/"), "nothing is downloaded"
        assert [word for word in words[1:] if "/" in word and not (ROOT / word).exists()] == []
