"""How Sphinx builds the site (`make docs`) and the manual pages (`make man`) from the Markdown in this folder.

The reference is made from the code while the site is built: tools/reference.py has the text, the directive below puts it in.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SOURCE = Path(__file__).resolve().parent
ROOT = SOURCE.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import click  # noqa: E402
import manual_pages  # noqa: E402
import reference  # noqa: E402

import ftslurm  # noqa: E402
from ftslurm.cli.ftslurm import VERBS, group  # noqa: E402

# sphinx_click takes those commands that click has; ours are there once they were asked for.
for verb in VERBS:
    group.get_command(click.Context(group), verb)

project = "ftslurm"
author = "The ftslurm developers"
copyright = author
version = release = ftslurm.__version__

extensions = ["myst_parser", "sphinx_click", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_build", "compare"]
nitpicky = True
myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 3
# Two dashes begin an option, and quotes belong to a shell.
smartquotes = False

html_theme = "furo"
html_title = f"ftslurm {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"
# The site needs no network: no fonts, no scripts from elsewhere.
html_theme_options = {"navigation_with_keys": True}

man_pages = manual_pages.for_sphinx(author)
man_show_urls = False


class Reference(SphinxDirective):
    """```{reference} PART [BUILDER]: what tools/reference.py makes of the code; with html, not in a manual page, which is too
    narrow for tables of long names. (Sphinx's own `only` puts what is nested here behind the last section of the page.)"""

    required_arguments = 1
    optional_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        text = reference.parts()[self.arguments[0]]()
        made = self.parse_text_to_nodes(text, allow_section_headings=True)
        return [addnodes.only("", *made, expr=self.arguments[1])] if self.arguments[1:] else made


# Pages of the repository's root that the site has as well: page -> file.
FROM_ROOT = {"security": "SECURITY.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def for_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """The Markdown is written for readers of the repository too. A page of the root becomes one of the site, and so does a link
    to it; a link to a folder, which the site does not have, becomes its text. MyST makes downloads of links to files."""
    here = SOURCE / page
    text = source[0]
    if page in FROM_ROOT:
        here, text = ROOT / FROM_ROOT[page], (ROOT / FROM_ROOT[page]).read_text()

    def link(found: re.Match[str]) -> str:
        words, place, anchor = found.group(1), (here.parent / found.group(2)).resolve(), found.group(3) or ""
        pages = {(ROOT / name).resolve(): SOURCE / f"{of}.md" for of, name in FROM_ROOT.items()}
        place = pages.get(place, place)
        if place.is_dir():
            if not (place / "index.md").exists():
                return words if words.startswith("`") else f"`{words}`"
            place = place / "index.md"
        return f"[{words}]({os.path.relpath(place, (SOURCE / page).parent)}{anchor})"

    source[0] = LINK.sub(link, text)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("reference", Reference)
    app.connect("source-read", for_the_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
