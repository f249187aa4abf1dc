"""The merge page over HTTP: what it shows, and that it takes nobody's time."""

import re
from threading import Event, Thread

import httpx
import pytest

from edgemerge.core.errors import SettingError
from edgemerge.server.dashboard import merge as merge_view
from tests.server.merge_site import FLEET, KINDS, MERGE, ROOT, filled, push, serving
from tests.server.signing_in import Operator, Page
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]

EVIL = "\"><script>alert(1)<img src=x onerror=alert(2)>'{{7*7}}&amp;" + "x" * 120


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("merge")) as found:
        yield found


@pytest.fixture(autouse=True)
def here(served):
    with filled(served[0]):
        yield served[0]


@pytest.fixture
def operator(served):
    return served[1]


def rows_of(text):
    """Give the cells of the preview, by device."""
    table = text[text.index('id="preview"') : text.index("</table>")]
    parts = re.findall(r'<tr>\s*<th scope="row">(.*?)</tr>', table, re.DOTALL)
    words = [re.sub(r"<[^>]+>", " ", part).split() for part in parts]
    return {word[0]: " ".join(word[1:]) for word in words}


def test_like_devices_are_in_one_group_whose_cells_say_how_well_they_explain_each_other(operator):
    page = Page(operator.get(f"{MERGE}/matrix").text)
    order = [attrs["value"] for attrs, _ in page.all("input", type="checkbox", name="source")]
    first = int(page.all("th", scope="rowgroup")[0][0]["rowspan"])
    groups = (sorted(order[:first]), sorted(order[first:]))
    assert sorted(groups) == [["a1", "a2", "a3"], ["b1", "b2"]]
    words = [text for _, text in page.all("span") if re.match(r"group \d: ", text)]
    assert sorted(word[9:] for word in words) == ["2 devices", "3 devices"]
    cells = [cell for cell in page.all("td") if "corner" not in cell[0]["class"]]
    size = len(KINDS)
    assert len(cells) == size**2
    for k, (attrs, text) in enumerate(cells):
        same = order[k // size][0] == order[k % size][0]
        assert attrs["class"].split()[0] == merge_view.colour_class(float(text))
        assert (float(text) <= 2.5) == same
        assert ("own" in attrs["class"]) == (k // size == k % size)


def test_the_matrix_is_a_table_that_can_be_read_aloud(operator):
    page = Page(operator.get(f"{MERGE}/matrix").text)
    assert page.text("caption").startswith("Loss of the data")
    columns = [text for _, text in page.all("th", scope="col")]
    assert columns == [text for _, text in page.all("th", scope="row")]
    assert [text for _, text in page.all("th", scope="rowgroup")] == ["group 1", "group 2"]
    assert [attrs["colspan"] for attrs, _ in page.all("th", scope="colgroup")] == [
        attrs["rowspan"] for attrs, _ in page.all("th", scope="rowgroup")
    ]
    assert len(page.all("li", class_="m11")) == 1


def test_where_a_group_begins_there_is_a_border(operator):
    page = Page(operator.get(f"{MERGE}/matrix").text)
    first = int(page.all("th", scope="rowgroup")[0][0]["rowspan"])
    cells = [attrs["class"].split() for attrs, _ in page.all("td")][1:]
    begins = [k % len(KINDS) for k, classes in enumerate(cells) if "g" in classes]
    assert set(begins) == {first}
    assert len(begins) == len(KINDS)


def test_the_page_comes_before_the_matrix_is_computed(here, operator, monkeypatch):
    monkeypatch.setattr(here.service.choices, "similarity", lambda *_: 1 / 0)
    page = Page(operator.get(MERGE, source="a1").text)
    (place,) = page.all("div", id="matrix")
    assert place[0]["data-src"] == f"{MERGE}/matrix?source=a1"
    assert page.all("p", role="status")[0][1].startswith("Computing…")
    (link,) = [attrs["href"] for attrs, text in page.all("a") if text == "Show the matrix"]
    assert link == f"{MERGE}?matrix=now&source=a1"


def test_without_scripts_the_matrix_comes_with_the_page(operator):
    page = Page(operator.get(MERGE, matrix="now", source="a1").text)
    checked = [
        attrs["value"] for attrs, _ in page.all("input", name="source") if "checked" in attrs
    ]
    assert checked == ["a1"]
    assert len(page.all("table", class_="matrix")) == 1


def test_computing_holds_up_nobody_else(here, operator, monkeypatch):
    begun, end = Event(), Event()

    def slow(*_):
        begun.set()
        end.wait(DEADLINE_S)
        raise SettingError("found too little time")

    monkeypatch.setattr(here.service.choices, "similarity", slow)
    asking = Thread(target=lambda: operator.get(f"{MERGE}/matrix"))
    asking.start()
    assert begun.wait(DEADLINE_S)
    try:
        other = Operator(here)
        assert httpx.get(f"{here.url}/healthz").status_code == 200
        assert other.get(MERGE).status_code == 200
        other.close()
    finally:
        end.set()
        asking.join()


def test_a_preview_says_what_would_happen_to_each_device(operator):
    text = operator.get(MERGE, source=["a1", "a2"], to="selected").text
    page, rows = Page(text), rows_of(text)
    assert sorted(rows) == ["a1", "a2"]
    assert re.match(r"normal ×0\.\d\d falls: it is explained better .* \+300$", rows["a1"])
    assert "Every level falls" in text
    (happens,) = [text for _, text in page.all("strong") if "adopt" in text]
    assert happens == "a1 and a2 will adopt only each other's sums"
    hidden = [attrs["value"] for attrs, _ in page.all("input", type="hidden", name="source")]
    assert hidden == ["a1", "a2"]
    assert page.all("input", type="hidden", name="to")[0][0]["value"] == "selected"


def test_a_preview_of_what_does_not_fit_says_that_devices_will_refuse(here, operator):
    alike = ["a1", "a2", "a3"]
    here.service.choices.adopt(FLEET, alike, alike, ROOT)
    text = operator.get(MERGE, source=["b1", "b2"], to="all").text
    rows = rows_of(text)
    assert sorted(rows) == sorted(KINDS)
    for device in KINDS:
        refused = "the device will refuse it unless sync.max_shift allows it" in rows[device]
        assert refused == (device in alike)
    assert "3 of 5 devices would refuse it: a1, a2 and a3." in text
    assert list(rows)[3:] == ["b1", "b2"] or list(rows)[3:] == ["b2", "b1"]  # least rises last
    assert "All 5 devices will adopt only the sums of b1 and b2" in text


def test_of_too_many_targets_those_with_most_samples_are_previewed(here, operator, monkeypatch):
    monkeypatch.setattr(merge_view, "MAX_TARGETS", 2)
    push(here, "large", 0.1, rows=900)
    text = operator.get(MERGE, source=["a1"], to="all").text
    assert sorted(rows_of(text)) == ["a1", "large"]
    assert "4 devices more would adopt the same" in text


def test_a_preview_that_cannot_be_made_is_told_on_the_page(operator):
    answer = operator.get(MERGE, source=["a1", "nobody"], to="selected")
    assert answer.status_code == 404
    assert "no device nobody" in Page(answer.text).all("p", role="alert")[0][1].lower()
    assert 'id="preview"' not in answer.text


def test_pages_without_much_to_show_say_what_to_do(operator):
    empty = operator.get("/ui/fleets/empty/merge").text
    assert "No contribution yet" in empty
    assert "edgemerge fleet invite empty DEVICE" in empty
    assert "about once an hour" in empty
    assert "<code>edgemerge sync CONFIG.toml</code>" in empty
    assert "None yet: every device adopts the contributions of all others." in empty
    single = operator.get("/ui/fleets/single/merge").text
    assert "Only <bdi>lonely</bdi> has shared" in single
    assert 'id="matrix"' not in empty + single
    assert operator.get("/ui/fleets/nowhere/merge").status_code == 404


def test_hostile_words_are_shown_as_words(here, operator):
    push(here, "a4", 0.1, pattern=EVIL)
    here.service.choices.exclude(FLEET, ("a4", 0, EVIL), ROOT)
    pages = [
        operator.get(MERGE),
        operator.get(MERGE, source=["a1", "a4"], to="selected"),
        operator.get(MERGE, exclude=f"a4/0/{EVIL}"),
    ]
    for answer in pages:
        page = Page(answer.text)
        assert answer.status_code == 200
        assert not page.scripts()
        assert any(EVIL in text for _, text in page.all("bdi"))
    for query in ({"find": EVIL}, {"source": EVIL}, {"source": EVIL, "to": EVIL, "done": EVIL}):
        for path in (MERGE, f"{MERGE}/matrix"):
            assert not Page(operator.get(path, **query).text).scripts()


def test_of_many_devices_some_are_left_out_and_can_be_found(operator, monkeypatch):
    monkeypatch.setattr(merge_view, "MATRIX_DEVICES", 3)
    text = operator.get(f"{MERGE}/matrix", source="a3").text
    assert len(Page(text).all("th", scope="row")) == 3
    assert "2 more devices are left out" in text
    text = operator.get(f"{MERGE}/matrix", find="B", source="a3").text
    page = Page(text)
    assert sorted(text for _, text in page.all("th", scope="row")) == ["b1", "b2"]
    assert "left out" not in text
    also = [attrs for attrs, _ in page.all("input", name="source") if attrs["value"] == "a3"]
    assert len(also) == 1
    assert "checked" in also[0]
    assert "No device that has shared" in operator.get(f"{MERGE}/matrix", find="zz").text


def test_small_cells_have_a_label_instead_of_text(operator, monkeypatch):
    monkeypatch.setattr(merge_view, "MAX_DEVICES_WITH_TEXT", 4)
    page = Page(operator.get(f"{MERGE}/matrix").text)
    cells = [cell for cell in page.all("td") if "corner" not in cell[0]["class"]]
    assert len(cells) == len(KINDS) ** 2
    for attrs, text in cells:
        assert text == ""
        assert attrs["aria-label"] == attrs["title"]
        assert float(attrs["aria-label"]) > 0


def test_finding_is_not_previewing(operator):
    asked = {"source": ["a1"], "to": "all", "find": "a"}
    assert 'id="preview"' not in operator.get(MERGE, **asked, only="matrix").text
    assert 'id="preview"' in operator.get(MERGE, **asked).text


def test_contributions_come_in_pages(operator, monkeypatch):
    monkeypatch.setattr(merge_view, "CONTRIBUTIONS_PER_PAGE", 2)
    seen = []
    for number in ("1", "2", "3", "9"):
        page = Page(operator.get(MERGE, page=number).text)
        seen.append([attrs["aria-label"] for attrs, text in page.all("a") if text == "Exclude…"])
    names = [[label.split()[1].rstrip(",") for label in labels] for labels in seen]
    assert names == [["a1", "a2"], ["a3", "b1"], ["b2"], ["b2"]]
    assert "page 3 of 3, 5 contributions" in operator.get(MERGE, page="9").text
