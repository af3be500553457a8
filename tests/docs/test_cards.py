"""The failure card that the documents show is one that ftrun prints."""

from __future__ import annotations

import re

import pytest

from ftslurm.report.card import card_lines, last_card
from tests.docs.blocks import ROOT
from tests.stories.test_blame import Campaign

FAILURE = """Traceback (most recent call last):
  File "/home/me/train.py", line 175, in step
    loss.backward()
RuntimeError: CUDA error: an illegal memory access was encountered
"""


@pytest.mark.parametrize("document", ["README.md", "docs/failures.md"])
def test_a_sample_card_is_as_ftrun_prints_it(document: str) -> None:
    shown = re.findall(r"^ftrun: (job 7 .*(?:\nftrun:   .*)+)", (ROOT / document).read_text(), re.MULTILINE)
    card = last_card(Campaign().until_over(1, FAILURE).job.ledger)
    assert card is not None
    printed = "\n".join(card_lines(card, width=1000))
    assert [same(text.replace("\nftrun: ", "\n")) for text in shown] == [same(printed)]


def same(card: str) -> list[str]:
    """Without how long it ran, and where the log is, which the story does not know."""
    return [re.sub(r"it ran [\d.]+ s", "it ran", line) for line in card.splitlines() if not line.startswith("  log ")]
