"""The merge page and the API about trust: what waits, approve, dismiss, undo, change the rule."""

import pytest

from tests.server.merge_site import FLEET, KINDS, MERGE, filled, push, serving
from tests.server.signing_in import Operator, Page

pytestmark = pytest.mark.slow
ODD = {"contribution": "c9/0/normal", "revision": "1"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("trust")) as found:
        yield found


@pytest.fixture(autouse=True)
def here(served):
    with filled(served[0]):
        push(served[0], "c9", 0.1)
        yield served[0]


@pytest.fixture
def operator(served):
    return served[1]


@pytest.fixture
def api(here, served):
    """Ask as the operator of the API."""

    def ask(method, path, **sent):
        headers = {"Authorization": f"Bearer {here.token}"}
        return served[1].http.request(method, f"/fleets/{FLEET}{path}", headers=headers, **sent)

    return ask


def waiting(operator):
    page = Page(operator.get(MERGE).text)
    return {attrs["aria-label"]: text for attrs, text in page.all("article", class_="waits")}


def states(operator):
    page = Page(operator.get(MERGE).text)
    rows = [text.split() for _, text in page.all("tr")][1:]
    return {row[0]: next(w for w in row if w in STATES) for row in rows if {*row} & STATES}


STATES = {"included", "excluded", "waiting", "dismissed"}


def test_the_rule_is_shown_and_changed_and_what_waits_is_named_with_its_reason(operator):
    assert waiting(operator) == {}
    assert "trust: members" in operator.get(f"/ui/fleets/{FLEET}").text.replace("</a>", "").replace(
        f'<a href="/ui/fleets/{FLEET}/merge#trust">', ""
    )
    done = operator.post(f"{MERGE}/trust", rule="quorum", quorum="2")
    assert done.headers["location"] == f"{MERGE}?done=trust"
    shown = operator.get(f"{MERGE}?done=trust").text
    assert "The trust of this fleet is quorum:2" in shown
    ((name, text),) = waiting(operator).items()
    assert name == "c9, normal"
    assert "1 of the 2 devices that it takes contributed a similar pattern" in text
    assert "Most like none nearest" in text
    assert "Samples 300" in text
    assert states(operator) == {**dict.fromkeys(KINDS, "included"), "c9": "waiting"}
    assert "1 contribution waits for approval" in operator.get(f"/ui/fleets/{FLEET}").text


def test_what_waits_is_approved_dismissed_and_that_is_undone(operator, here):
    operator.post(f"{MERGE}/trust", rule="person", quorum="2")
    assert set(waiting(operator)) == {f"{name}, normal" for name in (*KINDS, "c9")}
    assert "nothing is trusted yet" in waiting(operator)["c9, normal"]
    done = operator.post(f"{MERGE}/decide", decision="approve", comment="a new kind", **ODD)
    assert done.headers["location"] == f"{MERGE}?done=1"
    shown = operator.get(f"{MERGE}?done=1").text
    assert "Choice 1 is in force: what c9 saw of normal is approved" in shown
    assert "a new kind" in shown
    assert "c9, normal" not in waiting(operator)
    other = {"contribution": "a1/0/normal", "revision": "1"}
    operator.post(f"{MERGE}/decide", decision="dismiss", **other)
    assert (states(operator)["c9"], states(operator)["a1"]) == ("included", "dismissed")
    for number in ("1", "2"):
        operator.post(f"{MERGE}/undo", number=number)
    assert {"c9, normal", "a1, normal"} <= set(waiting(operator))
    log = operator.get(f"/ui/fleets/{FLEET}/log").text
    assert "approved the contribution" in log
    assert "dismissed the contribution" in log
    assert "changed the trust of" in log
    assert here.service.fleet(FLEET).trust == "person"


@pytest.mark.parametrize(
    ("action", "form", "words"),
    [
        ("decide", {"decision": "approve", **ODD, "revision": "7"}, "and 7 was looked at"),
        ("decide", {"decision": "praise", **ODD}, "expected one of approve, dismiss"),
        ("decide", {"decision": "approve", "contribution": "x"}, "device/incarnation/pattern"),
        ("trust", {"rule": "quorum", "quorum": "1"}, "quorum:K with K from 2"),
        ("trust", {"rule": "quorum", "quorum": "two"}, "quorum:K with K from 2"),
        ("trust", {"rule": "everyone"}, "quorum:K with K from 2"),
    ],
)
def test_what_cannot_be_done_is_said_on_the_page_and_changes_nothing(
    operator, here, action, form, words
):
    before = len(here.service.audit(None, 0, 10_000))
    answer = operator.post(f"{MERGE}/{action}", **form)
    assert answer.status_code in (404, 409, 422)
    assert words in answer.text.replace("&#39;", "'")
    assert len(here.service.audit(None, 0, 10_000)) == before


def test_a_stranger_and_a_form_from_elsewhere_change_nothing(operator, here):
    before = len(here.service.audit(None, 0, 10_000))
    stranger = Operator(here, signed_in=False)
    for action, form in (("trust", {"rule": "person"}), ("decide", {"decision": "approve", **ODD})):
        assert stranger.post(f"{MERGE}/{action}", **form).status_code in (303, 403)
        forged = operator.http.post(f"{MERGE}/{action}", data={"csrf": "wrong", **form})
        assert forged.status_code == 403
    stranger.close()
    assert len(here.service.audit(None, 0, 10_000)) == before


def test_the_api_does_the_same(api):
    assert api("GET", "").json()["trust"] == "members"
    assert api("GET", "/waiting").json() == []
    assert api("PUT", "/trust", json={"trust": "quorum:2"}).json()["trust"] == "quorum:2"
    (found,) = api("GET", "/waiting").json()
    assert (found["device"], found["revision"], found["like_none"]) == ("c9", 1, True)
    assert found["nearest"][0] in KINDS
    key = {"device": "c9", "incarnation": 0, "pattern": "normal"}
    stale = api("POST", "/choices", json={"kind": "approve", **key, "revision": 3})
    assert (stale.status_code, "look again" in stale.text) == (409, True)
    made = api("POST", "/choices", json={"kind": "approve", **key, "revision": 1, "comment": "x"})
    assert (made.status_code, made.json()["comment"], made.json()["revision"]) == (201, "x", 1)
    assert api("GET", "/waiting").json() == []
    assert api("DELETE", f"/choices/{made.json()['number']}").status_code == 200
    assert len(api("GET", "/waiting").json()) == 1
    assert api("PUT", "/trust", json={"trust": "quorum:1"}).status_code == 422


def test_devices_may_not_decide(here, served):
    token, _ = here.service.invite(FLEET, "d1", 60.0, here.service.caller(here.token))
    headers = {"Authorization": f"Bearer {here.service.enrol(token, FLEET, 'd1')[0]}"}
    http = served[1].http
    key = {"device": "c9", "incarnation": 0, "pattern": "normal"}
    for method, path, body in (
        ("PUT", "trust", {"trust": "members"}),
        ("GET", "waiting", None),
        ("POST", "choices", {"kind": "approve", **key}),
    ):
        answer = http.request(method, f"/fleets/{FLEET}/{path}", headers=headers, json=body)
        assert answer.status_code == 403
