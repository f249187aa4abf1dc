"""The desired state of a device over HTTP: one document with a revision, told with each report."""

import json

import httpx
import pytest

from edgemerge.core.errors import SettingError
from edgemerge.exchange.client import MAX_DESIRED_BYTES
from edgemerge.server import api
from edgemerge.server.auth import Caller
from tests.server.merge_site import FLEET, create, push, serving
from tests.server.reporting import said

pytestmark = pytest.mark.slow

ROOT = Caller("root")


@pytest.fixture
def site(tmp_path):
    """Three devices with one contribution each, in a fleet of totals and one of contributions."""
    with serving(tmp_path) as (here, _operator):
        for fleet, reads in ((FLEET, "totals"), ("open", "contributions")):
            create(here, fleet, read_mode=reads)
            for device, place in (("a", 0.1), ("b", 0.5), ("c", 0.9)):
                push(here, device, place, fleet=fleet)
        yield here


def ask(here, device, *, fleet=FLEET, token=None, **headers):
    headers["Authorization"] = f"Bearer {token or here.token}"
    return httpx.get(f"{here.url}/fleets/{fleet}/devices/{device}/desired", headers=headers)


def test_without_a_choice_a_device_adopts_all(site):
    answer = ask(site, "a", token=site.enrol(FLEET, "a"))
    assert answer.json() == {
        "format": 1,
        "revision": 0,
        "adopt": {"devices": None, "excluded": 0},
        "reviews": [],
        "settings": {"version": 0, "label": "", "limit": None, "false_alarms": None},
        "configuration": {"version": 0, "tables": {}},
    }
    assert answer.headers["etag"] == '"0"'
    assert answer.headers["cache-control"] == "no-cache"


def test_the_document_names_the_sources_and_what_is_excluded(site):
    act = site.service.choices
    act.adopt("open", ["a", "b"], ["a"], ROOT)
    act.exclude("open", ("b", 0, "normal"), ROOT)
    token = site.enrol("open", "a")
    adopt = {"devices": ["b"], "excluded": [["b", 0, "normal"]]}
    assert ask(site, "a", fleet="open", token=token).json()["adopt"] == adopt
    assert ask(site, "c", fleet="open").json()["adopt"] == {**adopt, "devices": None}
    act.adopt("open", [], ["c"], ROOT)
    assert ask(site, "c", fleet="open").json()["adopt"]["devices"] == []


def test_a_fleet_of_totals_tells_a_device_only_how_many_are_excluded(site):
    site.service.choices.exclude(FLEET, ("b", 0, "normal"), ROOT)
    told = ask(site, "a", token=site.enrol(FLEET, "a")).json()
    assert told["adopt"]["excluded"] == 1
    assert ask(site, "a").json()["adopt"]["excluded"] == [["b", 0, "normal"]]


def test_it_is_sent_again_only_when_its_revision_has_changed(site):
    made = site.service.choices.adopt(FLEET, ["b"], ["a"], ROOT)
    first = ask(site, "a")
    assert first.headers["etag"] == f'"{made.epoch}"'
    again = ask(site, "a", **{"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    site.service.choices.undo(FLEET, made.number, ROOT)
    changed = ask(site, "a", **{"If-None-Match": first.headers["etag"]})
    assert changed.status_code == 200
    assert changed.json()["revision"] > first.json()["revision"]
    assert changed.json()["adopt"]["devices"] is None


def test_the_answer_to_a_report_names_the_revision(site):
    token = site.enrol(FLEET, "a")
    made = site.service.choices.adopt(FLEET, ["b"], ["a"], ROOT)
    answer = httpx.post(
        f"{site.url}/fleets/{FLEET}/devices/a/report",
        content=json.dumps(said(1000.0)),
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.json()["desired"] == answer.json()["choice"] == made.epoch
    assert ask(site, "a", token=token).json()["revision"] == made.epoch


def test_only_the_device_itself_and_operators_read_it(site):
    answer = ask(site, "a", token=site.enrol(FLEET, "b"))
    assert answer.status_code == 403
    assert "only a itself or a person" in answer.json()["error"]
    assert ask(site, "a", token=site.enrol("open", "a")).status_code == 403
    assert ask(site, "nobody").status_code == 404
    assert ask(site, "a", fleet="nowhere").status_code == 404


def test_a_list_that_no_agent_would_read_becomes_its_number(site, monkeypatch):
    act = site.service.choices
    for device in "abc":
        act.exclude("open", (device, 0, "normal"), ROOT)
    act.adopt("open", ["a", "b"], ["c"], ROOT)
    whole = ask(site, "c", fleet="open")
    monkeypatch.setattr(api, "MAX_DESIRED_BYTES", len(whole.content))
    assert ask(site, "c", fleet="open").content == whole.content
    monkeypatch.setattr(api, "MAX_DESIRED_BYTES", len(whole.content) - 1)
    assert ask(site, "c", fleet="open").json()["adopt"] == {"devices": ["a", "b"], "excluded": 3}
    monkeypatch.setattr(api, "MAX_DESIRED_BYTES", 40)
    answer = ask(site, "c", fleet="open")
    assert answer.status_code == 422
    assert "expected at most 40: choose fewer sources for it" in answer.json()["error"]


def test_more_sources_than_a_device_can_read_are_refused(tmp_path):
    with serving(tmp_path) as (here, _operator):
        create(here, FLEET)
        names = [f"{i:04}{'x' * 96}" for i in range(3000)]
        here.service.writer.write(lambda tx: [enrol(tx, name) for name in [*names, "a"]])
        here.service.choices.adopt(FLEET, names[:2500], ["a"], ROOT)
        assert len(ask(here, "a").content) <= MAX_DESIRED_BYTES
        with pytest.raises(SettingError, match=r"of 3000 sources have .*: choose fewer sources"):
            here.service.choices.adopt(FLEET, names, ["a"], ROOT)


def enrol(tx, device):
    sql = "insert into devices (fleet, device, token_hash, enrolled) values (?, ?, ?, 0.0)"
    tx.run(sql, FLEET, device, device)
