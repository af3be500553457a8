"""A document as one page that needs nothing else: no script, no network, its own style, pictures inside.

What the ledger holds was written by anybody. Jinja escapes every value; nothing but the style sheet and the pictures, both made
here, is marked as safe. The page's own policy (CSP) forbids scripts, images, frames, forms and every style but ours.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from ftslurm.model.text import visible
from ftslurm.report.page.document import Document, Table

# Sections that begin on a new sheet.
BREAKS = frozenset({"timeline", "failures", "kinds", "jobs"})
_WHEN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_LONG = 32


def render_html(document: Document) -> str:
    style = _text("style.css")
    forms = Environment(
        loader=DictLoader({"page.html.j2": _text("page.html.j2")}), autoescape=True, undefined=StrictUndefined, finalize=_shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return forms.get_template("page.html.j2").render(
        document=document, style=Markup(style),  # noqa: S704 - a file of ours
        style_hash=b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        breaks=BREAKS, kind_of=lambda block: type(block).__name__, class_of=_class_of,
    )  # fmt: skip


def _shown(value: Any) -> Any:
    """Whatever is shown: text without control characters. What was made here stays as it is."""
    return value if isinstance(value, Markup) else visible(value, lines=True)


def _class_of(table: Table, column: int, value: str) -> Markup:
    word = "number" if column in table.numbers else "when" if _WHEN.fullmatch(value) else "wide" if len(value) > _LONG else ""
    return Markup(f' class="{word}"') if word else Markup("")  # noqa: S704 - words of ours


def _text(name: str) -> str:
    return files("ftslurm.report.page").joinpath(name).read_text(encoding="utf-8")
