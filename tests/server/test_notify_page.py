"""The page of receivers: add, test, remove; without scripts, and with the token of the form."""

import pytest

from tests.server.merge_site import FLEET, create, serving
from tests.server.signing_in import Page
from tests.services.receivers import receiver

pytestmark = pytest.mark.slow
NOTIFY = f"/ui/fleets/{FLEET}/notify"


@pytest.fixture(scope="module")
def operator(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("notify")) as (here, operator):
        create(here, FLEET)
        yield operator


def fields(server, **more):
    return (
        {"name": "shift", "kind": "webhook", "url": f"{server.url}/secret-path"}
        | {
            "event": ["alarm", "offline"],
            "minutes": "2.5",
            "secret": "sesame",
        }
        | more
    )


def test_a_receiver_is_added_tested_and_removed(operator):
    assert "No receivers yet" in operator.get(NOTIFY).text
    with receiver(200, 401) as server:
        done = operator.post(f"{NOTIFY}/add", **fields(server))
        assert (done.status_code, done.headers["location"]) == (303, f"{NOTIFY}?done=set")
        page = operator.get(NOTIFY).text
        row = " ".join(text for _, text in Page(page).all("td"))
        assert f"{server.url}/…" in row
        assert "alarm, offline every 2.5 min" in row
        assert "sesame" not in page
        assert "secret-path" not in page
        done = operator.post(f"{NOTIFY}/test", name="shift")
        assert done.headers["location"] == f"{NOTIFY}?done=tested"
        assert server.got[0][1]["Authorization"] == "Bearer sesame"
        assert "The test message was taken." in operator.get(NOTIFY, done="tested").text
        failed = operator.post(f"{NOTIFY}/test", name="shift")
        assert failed.status_code == 422
        assert (
            "The test message to shift was not accepted: the receiver answered 401" in failed.text
        )
    done = operator.post(f"{NOTIFY}/remove", name="shift")
    assert done.headers["location"] == f"{NOTIFY}?done=removed"
    assert "No receivers yet" in operator.get(NOTIFY).text
    log = operator.get(f"/ui/fleets/{FLEET}/log").text
    for words in ("set the receiver", "sent a test message to", "removed the receiver"):
        assert words in log
    assert "sesame" not in log
    assert "secret-path" not in log


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"url": "file:///etc/passwd"}, "expected http"),
        ({"name": "a b"}, "expected 1 to 100 letters"),
        ({"kind": "exec"}, "Kind: Input should be"),
        ({"event": []}, "Events: "),
        ({"minutes": "often"}, "no number"),
        ({"kind": "email", "url": ""}, "needs host, sender and to"),
    ],
)
def test_what_cannot_work_is_said_on_the_page(operator, changed, words):
    with receiver() as server:
        found = operator.post(f"{NOTIFY}/add", **fields(server, **changed))
    assert found.status_code == 422
    assert words in Page(found.text).text("p", role="alert")


@pytest.mark.parametrize("action", ["add", "test", "remove"])
def test_a_form_without_its_token_is_refused(operator, action):
    found = operator.http.post(f"{NOTIFY}/{action}", data={"name": "shift", "csrf": "wrong"})
    assert found.status_code == 403
    assert operator.http.get(NOTIFY).text.count("<tr>") == 0


def test_the_page_needs_no_script_of_its_own(operator):
    assert Page(operator.get(NOTIFY).text).scripts() == []
