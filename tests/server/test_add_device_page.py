"""Adding a device from the page: an invitation that is shown once, and commands that work."""

import html
import re

import pytest

from edgemerge.server.main import create_app
from tests.server.signing_in import Page
from tests.server.visiting import Visitor
from tests.server.world import FLEET

pytestmark = pytest.mark.slow

PAGE = f"/ui/fleets/{FLEET}/add"


def ask(operator, **fields):
    form = {"csrf": operator.csrf(), "device": "pump-1", "hours": "24"} | fields
    return operator.post(PAGE, form)


def test_the_invitation_is_shown_once_and_lets_the_device_in(world, operator):
    assert operator.get(PAGE).status_code == 200
    answer = ask(operator)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    shown = html.unescape(answer.text)
    (token,) = re.findall(r"printf '%s\\n' '(emi_[\w-]+)'", shown)
    assert "edgemerge enrol http://hub:8470 pumps pump-1" in shown
    assert 'device = "pump-1"' in shown
    assert "edgemerge agent agent.toml" in shown
    assert token not in operator.get(PAGE).text
    world.service.enrol(token, FLEET, "pump-1")
    assert [each.device for each in world.service.devices(FLEET)] == ["pump-1"]
    (entry,) = world.service.audit_newest_first(FLEET, 2**62, 10, action="invite")
    assert (entry.subject, entry.actor) == ("pump-1", "admin root")
    assert token not in entry.detail


@pytest.mark.parametrize(
    "fields", [{"device": "a b"}, {"device": ""}, {"device": "'; rm"}, {"hours": "9999"}]
)
def test_a_wrong_name_is_refused_in_words(operator, fields):
    answer = ask(operator, **fields)
    assert answer.status_code == 422
    (alert,) = [text for a, text in Page(answer.text).all("p") if a.get("role") == "alert"]
    assert "expected" in alert
    assert "emi_" not in answer.text


def test_only_operators_with_their_form_get_one(world, operator):
    assert operator.post(PAGE, {"device": "pump-1", "hours": "24"}).status_code == 403
    stranger = Visitor(create_app(world.service))
    assert stranger.get(PAGE).status_code == 303
    assert stranger.post(PAGE, {"device": "pump-1", "hours": "24"}).status_code == 303
    assert operator.get("/ui/fleets/nosuch/add").status_code == 404
