"""What operators do on the merge page, over HTTP: adopt, exclude, undo, and who may not."""

import re

import pytest

from tests.server.merge_site import FLEET, KINDS, MERGE, ROOT, create, filled, push, serving
from tests.server.reporting import merge_of, report
from tests.server.signing_in import Operator, Page

pytestmark = pytest.mark.slow


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


def in_force(here):
    return [choice for choice in here.service.choices.list_choices(FLEET) if choice.undone is None]


def state(here):
    """Everything that an action could change."""
    choices = [(c.number, c.undone) for c in here.service.choices.list_choices(FLEET)]
    return choices, len(here.service.audit(None, 0, 10_000))


@pytest.mark.slow
def test_a_stranger_sees_nothing_and_changes_nothing(here):
    stranger, before = Operator(here, signed_in=False), state(here)
    assert stranger.get(MERGE).headers["location"].startswith("/ui/sign-in")
    assert stranger.get(f"{MERGE}/matrix").status_code == 401
    for action in ("adopt", "exclude", "undo"):
        answer = stranger.post(f"{MERGE}/{action}", source="a1", to="all", number="1")
        assert answer.status_code in (303, 403)
        assert "done" not in answer.headers.get("location", "")
    assert state(here) == before
    stranger.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "form"),
    [
        ("adopt", {"source": ["a1", "a2"], "to": "selected"}),
        ("exclude", {"exclude": "a1/0/normal"}),
        ("undo", {"number": "1"}),
    ],
)
def test_a_form_of_another_sign_in_is_refused(here, operator, action, form):
    here.service.choices.adopt(FLEET, ["b1"], ["b2"], ROOT)
    before = state(here)
    for csrf in ("", "0" * 64):
        answer = operator.post(f"{MERGE}/{action}", **form | {"csrf": csrf})
        assert answer.status_code == 403
        assert "load the page again" in answer.text
    assert operator.get(f"{MERGE}/{action}", **form).status_code in (404, 405)
    assert state(here) == before


def test_looking_changes_nothing(here, operator):
    before = state(here)
    for query in (
        {},
        {"source": ["a1", "a2"], "to": "all"},
        {"exclude": "a1/0/normal"},
        {"done": 1},
    ):
        assert operator.get(MERGE, **query).status_code == 200
    assert operator.get(f"{MERGE}/matrix").status_code == 200
    assert state(here) == before


def test_adopting_is_told_to_the_devices_and_is_in_the_log(here, operator):
    answer = operator.post(f"{MERGE}/adopt", source=["a1", "a2"], to="selected")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{MERGE}?done=1")
    (choice,) = in_force(here)
    assert (choice.sources, choice.targets) == (("a1", "a2"), ("a1", "a2"))
    last = here.service.audit(FLEET, 0, 10_000)[-1]
    assert (last.actor, last.action) == ("admin test", "adopt")
    page = Page(operator.get(MERGE, done="1").text)
    (notice,) = [text for attrs, text in page.all("p") if attrs.get("class") == "notice good"]
    assert notice.startswith("Choice 1 is in force: a1 and a2 adopt only each other's sums.")


def test_all_devices_are_those_that_are_let_in(here, operator):
    here.service.revoke(FLEET, "b2", ROOT)
    operator.post(f"{MERGE}/adopt", source=["a1"], to="all")
    assert in_force(here)[0].targets == ("a1", "a2", "a3", "b1")


@pytest.mark.parametrize("done", ["99", "-1", "<script>", "1e3", "9" * 50, "1 adopted"])
def test_an_address_cannot_make_up_a_notice(here, operator, done):
    here.service.choices.adopt(FLEET, ["a1"], ["a2"], ROOT)
    assert "notice good" not in operator.get(MERGE, done=done).text


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"source": ["a1", "nobody"], "to": "selected"}, 404, "No device nobody in pumps"),
        ({"to": "all"}, 422, "Found no device selected"),
        ({"source": ["a1"], "to": "everybody"}, 422, "expected one of selected, all"),
        ({"source": ["a1"]}, 422, "expected one of selected, all"),
    ],
)
def test_what_cannot_be_adopted_is_told_on_the_page(here, operator, form, status, words):
    answer = operator.post(f"{MERGE}/adopt", **form)
    (notice,) = Page(answer.text).all("p", role="alert")
    assert (answer.status_code, notice[0]["class"]) == (status, "notice bad")
    assert words in notice[1]
    assert 'id="contributions"' in answer.text
    assert not in_force(here)


def test_a_fleet_that_tells_nothing_of_few_says_so(here, operator):
    create(here, "shy", min_devices=3)
    for device in ("s1", "s2"):
        push(here, device, 0.1, fleet="shy")
    answer = operator.post("/ui/fleets/shy/merge/adopt", source=["s1", "s2"], to="selected")
    assert answer.status_code == 422
    assert "choose more sources" in answer.text


def test_excluding_is_asked_for_in_words_then_done_then_undone(here, operator):
    asked = operator.get(MERGE, exclude="a1/0/normal")
    assert asked.status_code == 200
    for words in ("No device merges it any more", "remove it at their next exchange", "be undone"):
        assert words in asked.text
    assert not here.service.choices.excluded(FLEET)
    answer = operator.post(f"{MERGE}/exclude", exclude="a1/0/normal")
    assert answer.headers["location"] == f"{MERGE}?done=1"
    assert here.service.choices.excluded(FLEET) == {("a1", 0, "normal")}
    page = operator.get(MERGE, done="1").text
    assert "Choice 1 is in force: what a1 saw of normal is excluded." in page
    assert page.count('<span class="tag bad">excluded</span>') == 1
    assert 'aria-label="Undo excluding a1, normal"' in page
    assert "already excluded" in operator.get(MERGE, exclude="a1/0/normal").text
    assert operator.post(f"{MERGE}/undo", number="1").status_code == 303
    assert not here.service.choices.excluded(FLEET)
    page = operator.get(MERGE, done="1").text
    assert "Choice 1 is undone" in page
    assert '<span class="tag bad">excluded</span>' not in page


@pytest.mark.parametrize(
    "key", ["", "a1", "a1/x/normal", "a1/0/", "a1/0/other", "/0/normal", "a1/-1/n"]
)
def test_a_contribution_that_is_not_there_cannot_be_excluded(here, operator, key):
    before = state(here)
    assert operator.get(MERGE, exclude=key).status_code == 404
    answer = operator.post(f"{MERGE}/exclude", exclude=key)
    assert answer.status_code == 404
    assert Page(answer.text).all("p", role="alert")
    assert state(here) == before


@pytest.mark.parametrize("number", ["", "7", "-1", "x", "9" * 30])
def test_a_choice_that_is_not_there_cannot_be_undone(operator, number):
    answer = operator.post(f"{MERGE}/undo", number=number)
    assert answer.status_code == 404
    assert Page(answer.text).all("p", role="alert")[0][1].startswith("No choice")


def test_the_page_says_how_many_have_followed_a_choice(here, operator):
    made = here.service.choices.adopt(FLEET, ["a1", "a2", "a3"], list(KINDS), ROOT)
    text = operator.get(MERGE).text
    assert "0 of 5 devices follow it; 5 have not reported since" in text
    before, later = made.at - 60.0, made.at + 5.0
    for device, at, merged in (
        *(("a1", later, later - 1.0), ("a2", later, later - 1.0)),
        *(("b1", later, before), ("a3", before, before)),
    ):
        here.service.history.take(FLEET, device, report(at, merge=merge_of(merged)), at)
    text = operator.get(MERGE).text
    assert "2 of 5 devices follow it; 1 reported since and does not yet; 2 have not" in text


def test_devices_that_report_a_revision_are_taken_at_their_word(here, operator):
    made = here.service.choices.adopt(FLEET, ["a1", "a2"], ["a1", "a2"], ROOT)
    later, page = made.at + 5.0, f"/ui/fleets/{FLEET}/devices/a1"
    for device, followed in (("a1", made.epoch), ("a2", made.epoch - 1)):
        merge = merge_of(later - 1.0)
        told = report(later, merge=merge, desired=followed)
        here.service.history.take(FLEET, device, told, later)
    text = operator.get(MERGE).text
    assert "1 of 2 devices follows it; 1 reported since and does not yet" in text
    assert f"revision {made.epoch}, followed" in operator.get(page).text
    other = operator.get(page.replace("a1", "a2")).text
    assert f"revision {made.epoch}; it still follows {made.epoch - 1}" in other


def test_a_choice_that_newer_ones_replace_is_shown_as_such(here, operator):
    for sources in (["a1", "a2"], ["a1", "a2", "a3"]):
        here.service.choices.adopt(FLEET, sources, ["a1", "a2"], ROOT)
    page = operator.get(MERGE).text
    states = re.findall(r'<span class="tag [a-z]*">(in force|replaced|undone)</span>', page)
    assert states == ["in force", "replaced"]
    operator.post(f"{MERGE}/undo", number="2")
    page = operator.get(MERGE).text
    states = re.findall(r'<span class="tag [a-z]*">(in force|replaced|undone)</span>', page)
    assert states == ["undone", "in force"]
