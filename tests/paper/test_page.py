"""The HTML page needs nothing but itself, and can be read by everyone."""

import re
from base64 import b64decode
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from edgemerge.paper.reporting.content import read_report
from edgemerge.paper.reporting.html_page import render_html
from tests.paper.folders import RESULTS, fill

EMPTY = {"img", "meta", "br"}


class Seen(HTMLParser):
    """Notes tags with their attributes, and text by tag; complains about tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.text.append((self.open[-1], data.strip()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def html(tmp_path_factory) -> str:
    return render_html(read_report(fill(tmp_path_factory.mktemp("page")), RESULTS))


@pytest.fixture(scope="module")
def seen(html) -> Seen:
    found = Seen()
    found.feed(html)
    found.close()
    assert not found.open
    return found


def test_nothing_is_loaded_from_elsewhere(html, seen):
    addresses = [a.get(key) for _, a in seen.tags for key in ("src", "href", "action", "srcset")]
    assert all(each.startswith(("#", "data:image/png;base64,")) for each in addresses if each)
    assert not seen.all("script")
    assert not seen.all("link")
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src 'none'" in seen.all("meta")[3]["content"]


def test_figures_are_in_the_page_with_words_for_those_who_do_not_see_them(seen):
    images = seen.all("img")
    assert [image["alt"] for image in images] == [
        f"Something <made> up ({n})" for n in ("one", "two")
    ]
    for image in images:
        assert b64decode(image["src"].partition(",")[2]).startswith(b"\x89PNG")
        assert (image["width"], image["height"]) == ("288", "192")


def test_headings_go_down_one_level_at_a_time(seen):
    levels = [int(tag[1]) for tag, _ in seen.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert max(levels) == 3
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_the_contents_lead_to_every_section(seen):
    ids = [attributes["id"] for _, attributes in seen.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [link["href"] for link in seen.all("a")]
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert {section["id"] for section in seen.all("section")} <= {link[1:] for link in links}


def test_tables_have_headings_and_can_be_moved_by_keyboard(seen):
    assert len(seen.all("caption")) == len(seen.all("table")) == 5
    assert all(cell["scope"] in {"col", "row"} for cell in seen.all("th"))
    boxes = [a for tag, a in seen.tags if tag == "div" and a.get("class", "").startswith("box")]
    assert len(boxes) == 7
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)


def test_whether_a_claim_holds_is_said_in_words_not_only_by_colour(seen):
    words = [text for tag, text in seen.text if text in {"Holds", "Does not hold", "Not measured"}]
    assert words.count("Does not hold") == words.count("Not measured") == 2
    assert words.count("Holds") == 5  # two claims, each twice, and a heading


def test_what_is_not_ours_is_escaped(html, seen):
    assert "<made>" not in html.replace('alt="Something <made>', "")
    assert ("p", "There are <none>") in seen.text
    assert ("code", "code") in seen.text


def test_numbers_settings_and_machine_are_there(html):
    for words in (
        *("0.957 ± 0.004 (50)", "--seed 7 --trials 50", "SHA-256 abababababababab", "Network(8)"),
        *("Abacus 3", "numpy 2.0", "not run: no torch", "a part of the data"),
        *("Title of cost", "<code>edgemerge paper cost</code> makes it", "may not be passed on"),
    ):
        assert words in html


def test_light_dark_narrow_and_print_are_provided_for(html):
    for words in ("prefers-color-scheme: dark", "max-width: 40rem", "@media print", "width=device"):
        assert words in html
