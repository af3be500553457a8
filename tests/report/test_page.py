"""The report as people get it: nothing that a ledger says becomes markup, a script or a command to a terminal, and the page stands
alone in a real browser."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

from ftslurm.cli.output import as_json
from ftslurm.model import record as rec
from ftslurm.model.folds.summary import summarise
from ftslurm.report.account.job import JobAccount, account, since, with_story
from ftslurm.report.account.jobs import jobs_account
from ftslurm.report.account.parts import Part
from ftslurm.report.page import html, plain
from ftslurm.report.page import job as job_page
from ftslurm.report.page import jobs as jobs_page
from ftslurm.report.page.document import Block, Document, hours, percent
from ftslurm.report.words import span
from tests.report import browser
from tests.report.ledgers import HOSTILE, NOW, H, T, big_job, hostile

STACKS = {"attempt-3.n26.txt": "rank 200, main thread:\n  read\n  dataset.py:88\n" + "\n".join(HOSTILE)}


def told(records: list[rec.Record], **more: object) -> JobAccount:
    known = summarise(records)
    assert known is not None
    return with_story(account(records, known, NOW, **more), records)  # type: ignore[arg-type]


BIG, EVIL = told(big_job()), told(hostile(big_job()))
JOBS = jobs_account([BIG, EVIL], T, NOW, ["/home/x/.ftslurm/jobs/<b>.jsonl cannot be read"])
DOCUMENTS: dict[str, tuple[Document, object]] = {
    "job": (job_page.job_document(BIG, NOW, STACKS), BIG),
    "hostile": (job_page.job_document(EVIL, NOW, {f"attempt-3.{word}": word for word in HOSTILE}), EVIL),
    "jobs": (jobs_page.jobs_document(JOBS, NOW), JOBS),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, (document, _) in DOCUMENTS.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(html.render_html(document), encoding="utf-8")  # type: ignore[arg-type]
    return found


# --- what a browser would make of it, without one


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        self.ids += [value or "" for key, value in attrs if key == "id"]


OURS = frozenset(
    "html head meta title style body header h1 p dl div dt dd nav ul li a main section h2 table tr th td thead tbody caption figure "
    "figcaption article h3 details summary pre footer span svg path defs use text pattern rect line".split()
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nothing_in_a_ledger_becomes_a_tag_an_attribute_or_a_link(pages: dict[str, Path], name: str) -> None:
    page = Page(pages[name].read_text(encoding="utf-8"))
    assert page.tags <= OURS
    for tag, key, value in page.attributes:
        assert not key.startswith("on") and key != "style", (tag, key, value)
        if key in ("href", "src", "xlink:href", "action"):
            assert re.fullmatch(r"#[\w-]+", value), (tag, key, value)
    assert len(page.ids) == len(set(page.ids))
    links = {value[1:] for _, key, value in page.attributes if key == "href"}
    fills = set(re.findall(r"url\(#([\w-]+)\)", " ".join(value for _, _, value in page.attributes)))
    assert links | fills | {f"look-{part.name.lower().replace('_', '-')}" for part in Part} <= set(page.ids)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_policy_forbids_all_but_the_page_s_own_style(pages: dict[str, Path], name: str) -> None:
    text = pages[name].read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert text.index("Content-Security-Policy") < text.index("<title>")
    assert "url(http" not in text and "@import" not in text


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_control_character_reaches_a_page_or_a_terminal(pages: dict[str, Path], name: str) -> None:
    document, _ = DOCUMENTS[name]
    for text in (pages[name].read_text(encoding="utf-8"), plain.render_text(document)):
        assert not [char for char in text if not char.isprintable() and char != "\n"]


def test_the_page_has_a_form_for_every_kind_of_block() -> None:
    forms = re.findall(r'kind == "(\w+)"', (Path(html.__file__).parent / "page.html.j2").read_text())
    assert sorted({*forms}) == sorted(kind.__name__ for kind in get_args(Block))


def test_what_is_huge_is_cut(pages: dict[str, Path]) -> None:
    assert pages["hostile"].stat().st_size < 600_000
    assert "x" * 2000 not in re.sub(r"<pre>.*?</pre>", "", pages["hostile"].read_text(encoding="utf-8"), flags=re.S)


# --- Markdown


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nothing_in_a_ledger_becomes_markdown(name: str) -> None:
    text = plain.render_text(DOCUMENTS[name][0])
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    assert not [line for line in lines if re.search(r"(?<!\\)<|\]\(|(?<!\\)`", line)]
    ours = {section.title for section in DOCUMENTS[name][0].sections}
    assert {line[3:] for line in lines if line.startswith("## ")} <= ours
    for before, line in itertools.pairwise(lines):
        if before.startswith("|") and line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", before)) == len(re.findall(r"(?<!\\)\|", line)), line


def test_a_report_reads_well_in_a_terminal() -> None:
    text = plain.render_text(DOCUMENTS["job"][0])
    assert "n[2-11,13-25,27-64,81-83] (512 ranks, 512 GPUs)" in text
    assert re.search(r"\|   3 \| \S+ \S+ \| hang +\| node-replacement +\| 10 min 12 s \| 34 s \|  4.0 s \|", text)
    assert "dataset.py:88" in text and "Why node-replacement, and not a rung before it" in text


# --- figures


def test_the_figures_of_a_big_job() -> None:
    known = BIG.spent.ettr
    assert known is not None and 0.975 < known.low < known.high < 0.985
    assert [one.name for one in BIG.failures] == [
        "xid-94", "SIGKILL (drill)", "hang", "nccl-remote", "a node failed", "oom-host",
    ]  # fmt: skip
    assert [one.outage.failed for one in BIG.failures] == [True, False, True, True, True, True]
    assert BIG.failures[4].unsure_s == 600 and BIG.failures[2].nodes == ("n26",)
    assert BIG.budgets == {"max_restarts": (6, 8), "node_replacements": (1, 2)} and BIG.queued_s == 688
    # 121 s and 35 s of script and step each, four times (nobody decided on the fifth), less what ftrun took
    took = [47.0 + 2, 4 + 62 + 31, 2 + 65 + 41, 2 + 110 + 41]
    plain = BIG.saved.plain_s
    assert BIG.saved.outages == 4 and plain == pytest.approx(121 + 41, abs=5)
    assert BIG.saved.seconds == pytest.approx(4 * plain - sum(took), abs=2)
    assert BIG.saved.gpu_s == BIG.saved.seconds * 512


def test_many_jobs_are_counted_by_gpu_and_their_bins_hold_all_of_the_time() -> None:
    two = jobs_account([BIG, BIG], T, NOW)
    assert two.unit == "GPU" and two.failures == 10 and two.drills == 2
    assert sum(two.parts.values()) == pytest.approx(2 * 512 * BIG.spent.whole_s, rel=1e-6)
    assert sum(sum(each.parts.values()) for each in two.bins) == pytest.approx(sum(two.parts.values()))
    assert sum(each.failures for each in two.bins) == 10
    assert two.by_job.count == 10 and two.by_node.count == 6 and two.by_gpu is not None
    assert two.by_node.exposure_s == pytest.approx(64 * two.by_job.exposure_s)
    assert [kind.count for kind in two.kinds] == [2, 2, 2, 2, 2] and two.nodes[0].node == "n12"


def test_only_what_came_after_the_given_moment_counts() -> None:
    late = since(BIG, T + 40 * H)
    assert late.spent.whole_s == pytest.approx(32 * H) and sum(late.spent.parts.values()) == pytest.approx(32 * H)
    assert [one.name for one in late.failures] == ["nccl-remote", "a node failed", "oom-host"]
    assert late.saved.outages == 2 and {event.what for event in late.events} == {"excluded", "reinstated"}
    assert since(BIG, T - 5) is BIG


@pytest.mark.parametrize("found", [plain.job_as_plain(BIG), plain.job_as_plain(EVIL), plain.jobs_as_plain(JOBS)])
def test_json_is_json_and_adds_up(found: dict[str, object]) -> None:
    again = json.loads(as_json(found), parse_constant=pytest.fail)
    assert again["version"] == plain.VERSION
    if again["kind"] == "job":
        assert sum(again["parts"].values()) == pytest.approx(again["whole_s"])


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (percent(0.973), "97.3 %"), (percent(1.0), "100.0 %"), (percent(0.9999), "99.99 %"), (percent(0.9999999), "> 99.999 %"),
        (percent(1e-9), "< 0.001 %"), (span(0), "0 s"), (span(-7), "-7.0 s"), (span(200_000), "2 d 7 h"),
        (hours(3600 * 1234), "1,234"), (hours(36), "0.01"),
    ],
)  # fmt: skip
def test_numbers_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected


# --- in a real browser


@pytest.fixture
def real(tmp_path: Path) -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        if os.environ.get("FTSLURM_REQUIRE_SLURM") == "1":
            pytest.fail("no Chromium is installed, and FTSLURM_REQUIRE_SLURM=1 says that nothing may be missing")
        pytest.skip("no Chromium is installed (tools/setup test installs it)")
    opened = browser.Browser(program, tmp_path)
    yield opened
    opened.close()


# Boxes of text that stick out of the page; what scrolls in itself may.
TOO_WIDE = """[...document.querySelectorAll('h1,h2,h3,p,dd,dt,li,figure,.card,pre')]
    .filter(e => e.offsetParent && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(e => e.tagName + ': ' + e.textContent.slice(0, 60))"""
# Text in pictures that is cut off at their edges.
CUT_OFF = """[...document.querySelectorAll('svg')].filter(s => s.getClientRects().length).flatMap(s => {
    const b = s.getBoundingClientRect();
    return [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();
        return r.left < b.left - 3 || r.right > b.right + 3 || r.bottom > b.bottom + 3; }).map(t => t.textContent) })"""


@pytest.mark.timeout(180)
def test_in_a_real_browser_pages_stand_alone_fit_and_run_nothing(
    real: browser.Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    for name, width, dark in (
        ("job", 1280, False),
        ("job", 400, True),
        ("hostile", 1280, False),
        ("hostile", 400, False),
        ("jobs", 400, False),
    ):
        real.show(pages[name], width, dark)
        asked = [event["params"]["request"]["url"] for event in real.events if event.get("method") == "Network.requestWillBeSent"]
        assert asked == [pages[name].as_uri()], "a page asks for nothing else"
        complaints = [event for event in real.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
        assert not complaints, "its own policy finds nothing to forbid"
        assert real.evaluate("[window.pwned ?? null, document.scripts.length, document.title === 'pwned']") == [None, 0, False]
        assert real.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (name, width)
        assert real.evaluate(TOO_WIDE) == [] and real.evaluate(CUT_OFF) == [], (name, width)
        colours = real.evaluate("['color', 'backgroundColor'].map(key => getComputedStyle(document.body)[key])")
        assert colours == (["rgb(230, 233, 237)", "rgb(20, 23, 27)"] if dark else ["rgb(26, 29, 33)", "rgb(255, 255, 255)"])
        assert real.evaluate("getComputedStyle(document.querySelector('svg text')).fill") == colours[0], (
            "pictures follow the page"
        )
    real.shoot(tmp_path / "jobs.png")
    assert (tmp_path / "jobs.png").read_bytes().startswith(b"\x89PNG")
    real.show(pages["job"], 1280)
    real.print(tmp_path / "job.pdf")
    pdf = (tmp_path / "job.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12
