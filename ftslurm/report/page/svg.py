"""Makes what matplotlib draws fit into a page with a strict policy: no style attributes, no ids but those that are needed, and
the page's own colours for ink and paper, so that one picture serves light, dark and paper.
"""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.figure import Figure

# Colours that stand for the page's own; nothing else is drawn in them.
INK, SOFT, PAPER = "#010203", "#040506", "#fafbfc"
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# What it does is in the page's own style sheet.
_DROPPED = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")
_FONT = re.compile(r"(?:[a-z-]+ )*?(?:(?P<weight>bold|\d{3}) )?(?P<size>[\d.]+)px ", re.ASCII)
_CLASSES = {SOFT: "soft", PAPER: "paper"}


def markup(figure: Figure, name: str, title: str) -> Markup:
    """name: of this picture in its page; its ids begin with that. title: for those who do not see it."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(out.getvalue())  # noqa: S314 - matplotlib has just written it
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in _DROPPED:
                parent.remove(child)
    used = {word for element in root.iter() for value in element.attrib.values() for word in re.findall(r"#([\w-]+)", value)}
    for element in root.iter():
        _restyle(element)
        _rename(element, used, name)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", title)
    ElementTree.register_namespace("", _SVG)
    text = ElementTree.tostring(root, encoding="unicode")
    return Markup(text)  # noqa: S704 - text in it was escaped by ElementTree


def _restyle(element: ElementTree.Element) -> None:
    """Declarations become attributes, which no policy forbids."""
    for declaration in element.attrib.pop("style", "").split(";"):
        key, colon, value = declaration.partition(":")
        if colon:
            _declare(element, key.strip(), value.strip())
    for key in ("fill", "stroke"):
        if (value := element.get(key, "").lower()) in (INK, SOFT, PAPER):
            element.set(key, "currentColor")
            if value in _CLASSES:
                element.set("class", _CLASSES[value])
    if element.tag == f"{{{_SVG}}}text" and "fill" not in element.attrib:
        element.set("fill", "currentColor")


def _declare(element: ElementTree.Element, key: str, value: str) -> None:
    if key != "font":
        element.set(key, value)
        return
    if found := _FONT.match(value):
        element.set("font-size", found["size"])
        if found["weight"]:
            element.set("font-weight", found["weight"])


def _rename(element: ElementTree.Element, used: set[str], name: str) -> None:
    if (own := element.get("id")) is not None:
        del element.attrib["id"]
        if own in used:
            element.set("id", f"{name}-{own}")
    if (link := element.attrib.pop(f"{{{_LINK}}}href", "")).startswith("#"):
        element.set("href", f"#{name}-{link[1:]}")
    for key, value in element.attrib.items():
        if value.startswith("url(#"):
            element.set(key, f"url(#{name}-{value[5:]}")
