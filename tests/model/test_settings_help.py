"""Each setting says what it does, in plain words: `ftslurm explain`, the manual page and the site's reference show these texts."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console

from ftslurm.config.catalog_files import load_glossary
from ftslurm.model.settings import hook_settings, kinds
from ftslurm.model.settings import tree as settings
from ftslurm.report.explain.terms import ladder_as_json, print_ladder
from tests.each import each

GLOSSARY = load_glossary()
# Words of the glossary's right-hand column, and inversions.
NOT_PLAIN = re.compile(
    r"\b(as (often|many)|so long|to be had|let be|is (told|said)|ask not|none of ours|stands? still|go on)\b|\bleft for\b"
)


def name_of(leaf: Any) -> str:
    return str(leaf.name)


def test_each_setting_says_what_it_does() -> None:
    assert set(GLOSSARY.settings) == set(settings.LEAVES) and set(GLOSSARY.hooks) == set(hook_settings.LEAVES)
    each((*GLOSSARY.settings.values(), *GLOSSARY.hooks.values()), says_what_it_does, str)


def says_what_it_does(what: str) -> None:
    assert len(what) >= 20, "a bare unit explains nothing"
    assert not NOT_PLAIN.search(what)
    assert not what.endswith("."), "a phrase, so that a value can stand before it"


def test_each_setting_says_what_it_takes_and_takes_its_default() -> None:
    each(settings.LEAVES.values(), takes_its_default, name_of)


def takes_its_default(leaf: Any) -> None:
    kind = leaf.kind
    assert kinds.takes(kind) != "text" or kind is kinds.text
    written = kinds.value_in_words(leaf, leaf.default)
    assert kind("" if written in ("(empty)", "none") and leaf.default in ("", (), None) else written) == leaf.default


def test_explain_shows_value_place_default_and_effect() -> None:
    resolved = settings.resolve([kinds.Layer({"stop.grace": "1m"}, {"stop.grace": "policy.yaml, line 3"})])
    out = io.StringIO()
    print_ladder(Console(file=out, width=200), resolved, GLOSSARY, {})
    assert re.search(r"stop\.grace +1m +\[policy\.yaml, line 3; default 20s\] +time from SIGTERM to SIGKILL", out.getvalue())
    shown = ladder_as_json(resolved, GLOSSARY, {})["settings"]["stop.grace"]
    assert (shown["value"], shown["default"], shown["variable"]) == (60.0, 20.0, "FTRUN_STOP_GRACE")
    assert shown["takes"] == "a duration, such as 20s, 5m, 24h or 2d"
