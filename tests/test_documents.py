"""What the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
