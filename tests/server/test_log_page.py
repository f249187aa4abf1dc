"""The log page over HTTP, and the audit log read newest first."""

import re

import pytest
from click.testing import CliRunner

from edgemerge import encode
from edgemerge.cli import main
from edgemerge.server import audit
from edgemerge.server.auth import Caller
from edgemerge.server.dashboard import log
from edgemerge.server.fleets import Fleet
from tests.server.signing_in import Operator, Page
from tests.server.world import SHARED
from tests.services.hub import running

ROOT = Caller("root")
LOG = "/ui/fleets/pumps/log"
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)> \u202e{{7*7}}'


def note(database, *, action="contribute", fleet="pumps", subject="pump-1", **detail):
    with database.writing() as tx:
        audit.append(
            tx, at=5.0, actor="operator o", action=action, fleet=fleet, subject=subject, **detail
        )


def newest(database, **asked):
    words = {"fleet": "pumps", "before": 2**62, "limit": 10, "action": "", "subject": ""}
    with database.reading() as tx:
        return [entry.seq for entry in audit.latest_entries(tx, **words | asked)]


def test_entries_come_newest_first_and_of_one_fleet(database):
    for fleet in ("pumps", "fans", "pumps", "", "pumps"):
        note(database, fleet=fleet)
    assert newest(database) == [5, 3, 1]
    assert newest(database, before=5) == [3, 1]
    assert newest(database, limit=2) == [5, 3]
    assert newest(database, fleet="none") == []


def test_entries_are_found_by_action_and_by_what_they_are_about(database):
    note(database, action="contribute", subject="Pump-1/0/10% load")
    note(database, action="adopt", subject="pump-2")
    note(database, action="enrol", subject="pump_3")
    note(database, action="enrol", subject="Ölpumpe!")
    assert newest(database, action="adopt") == [2]
    assert newest(database, action="-contribute") == [4, 3, 2]
    assert newest(database, subject="PUMP-1") == [1]
    assert newest(database, subject="10%") == [1]
    assert newest(database, subject="p_m") == []
    assert newest(database, subject="p_3") == [3]
    assert newest(database, subject="Öl") == [4]
    assert newest(database, subject="!") == [4]
    assert newest(database, subject="pump", action="enrol") == [4, 3]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with running(f"sqlite:///{tmp_path_factory.mktemp('log') / 'fleets.db'}") as found:
        made = Fleet("pumps", encode(SHARED), "totals", 1, False, 0, 0.0)
        found.service.create(made, ROOT)
        for number in range(7):
            found.service.invite("pumps", f"pump-{number}", 60.0, ROOT)
        note(found.service.database, subject=f"pump-9/0/{EVIL}", digest="ab" * 32, samples=1234.5)
        note(found.service.database, action=EVIL, subject="odd", words=[EVIL, 3], more={"a": 1})
        yield found


@pytest.fixture(scope="module")
def operator(here):
    found = Operator(here)
    yield found
    found.close()


def entries(text):
    """Give the words of each entry, by its number."""
    found = re.findall(r"<tr>\s*<td class=\"number\"[^>]*>(\d+)</td>(.*?)</tr>", text, re.DOTALL)
    return {int(seq): " ".join(re.sub(r"<[^>]+>", " ", rest).split()) for seq, rest in found}


def test_the_log_says_who_did_what_and_how_it_is_sealed(operator):
    answer = operator.get(LOG)
    found = entries(answer.text)
    assert answer.status_code == 200
    assert list(found) == sorted(found, reverse=True)
    assert "operator root created the fleet pumps" in found[2]
    assert "operator root invited pump-6" in found[9]
    assert "edgemerge fleet audit</code> checks the whole chain" in answer.text
    assert 'title="sealed by ' in answer.text


def test_details_are_shown_plainly(operator):
    text = operator.get(LOG).text
    assert f'digest <bdi title="{"ab" * 6}…">{"ab" * 6}…</bdi>' in text
    assert "1,234.5" in text
    assert re.search(r'expires <time datetime="20\d\d-', text)


def test_the_log_comes_in_pages(operator, monkeypatch):
    monkeypatch.setattr(log, "ENTRIES_PER_PAGE", 5)
    path, seen = LOG, []
    while path:
        page = Page(operator.get(path).text)
        seen.append([int(text) for attrs, text in page.all("td", class_="number")])
        links = {text: attrs["href"] for attrs, text in page.all("a")}
        assert ("Newest" in links) == (len(seen) > 1)
        path = links.get("Older", "")
    assert [len(part) for part in seen] == [5, 5]
    listed = [number for part in seen for number in part]
    assert listed == sorted(set(listed), reverse=True)


def test_pages_keep_what_was_asked_for(operator, monkeypatch):
    monkeypatch.setattr(log, "ENTRIES_PER_PAGE", 2)
    page = Page(operator.get(LOG, action="invite", find="pump").text)
    (older,) = [attrs["href"] for attrs, text in page.all("a") if text == "Older"]
    found = entries(operator.get(older).text)
    assert list(found) == [7, 6]
    assert all("invited pump-" in words for words in found.values())
    (chosen,) = [attrs for attrs, _ in page.all("option") if "selected" in attrs]
    assert chosen["value"] == "invite"
    assert page.all("input", id="find")[0][0]["value"] == "pump"


def test_the_log_can_be_searched(operator):
    assert len(entries(operator.get(LOG, action="invite").text)) == 7
    assert len(entries(operator.get(LOG, action="-contribute").text)) == 9
    assert list(entries(operator.get(LOG, find="PUMP-3").text)) == [6]
    nothing = operator.get(LOG, find="nowhere")
    assert nothing.status_code == 200
    assert "Nothing found" in nothing.text
    assert "No entry fits." in nothing.text


@pytest.mark.parametrize(
    "query",
    [{"before": "x"}, {"before": "-5"}, {"before": "9" * 40}, {"find": "\0"}, {"action": "\0'--"}],
)
def test_an_address_that_makes_no_sense_is_no_fault(operator, query):
    assert operator.get(LOG, **query).status_code == 200


def test_hostile_words_are_shown_as_words(operator):
    for query in ({}, {"find": EVIL}, {"action": EVIL}):
        page = Page(operator.get(LOG, **query).text)
        assert not page.scripts()
    assert any(
        "<script>alert(1)</script>" in text for _, text in Page(operator.get(LOG).text).all("bdi")
    )


def test_the_log_is_for_operators_of_a_fleet_that_is_there(here, operator):
    stranger = Operator(here, signed_in=False)
    assert stranger.get(LOG).headers["location"].startswith("/ui/sign-in")
    stranger.close()
    assert operator.get("/ui/fleets/nowhere/log").status_code == 404


def test_the_page_names_the_option_with_which_the_command_checks_a_noted_entry(operator):
    (option,) = re.findall(r"<code>(--\S+) HASH</code>", operator.get(LOG).text)
    command = CliRunner().invoke(main, ["fleet", "audit", "--help"])
    assert f"{option} HASH" in command.output
