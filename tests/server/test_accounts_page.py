"""The page of accounts: tokens shown once, changes and refusals, without scripts."""

import re

import pytest

from edgemerge.server.auth import Caller
from edgemerge.server.main import create_app
from tests.server.visiting import Visitor
from tests.server.world import FLEET

pytestmark = pytest.mark.slow
PAGE = "/ui/accounts"
ADMIN = Caller("root", role="admin")


@pytest.fixture
def world(world):
    world.app = create_app(world.service)
    return world


@pytest.fixture
def admin(world):
    visitor = Visitor(world.app)
    visitor.sign_in(world.operator_token)
    return visitor


def send(admin, path="", **form):
    return admin.post(PAGE + path, {"csrf": admin.csrf(), **form})


def secret(answer):
    assert answer.status_code == 200
    return re.findall(r'id="secret">([^<]+)<', answer.text)[0]


def test_a_new_account_shows_its_token_once_and_can_sign_in(world, admin):
    made = send(admin, name="eve", role="operator", days="90")
    token = secret(made)
    assert token not in admin.get(PAGE).text
    assert world.service.accounts.get("eve").expires == world.now + 90 * 86_400
    eve = Visitor(world.app)
    assert eve.sign_in(token).status_code == 303
    assert "Signed in as eve, operator" in eve.get("/ui/nowhere").text
    last = world.service.audit(None, 0, 100)[-2]
    assert (last.actor, last.action, last.subject) == ("admin root", "add account", "eve")


def test_a_wall_link_is_shown_as_an_address_that_opens_its_page(world, admin):
    link = secret(send(admin, name="hall", role="wall", fleet=FLEET, days="365"))
    assert link.startswith("http://hub:8470/ui/wall/emw_")
    assert Visitor(world.app).get(link.removeprefix("http://hub:8470")).status_code == 200
    again = secret(send(admin, "/hall/rotate"))
    assert Visitor(world.app).get(link.removeprefix("http://hub:8470")).status_code == 403
    assert Visitor(world.app).get(again.removeprefix("http://hub:8470")).status_code == 200
    assert f"wall link of <bdi>{FLEET}</bdi>" in admin.get(PAGE).text


def test_an_account_is_changed_rotated_and_revoked(world, admin):
    accounts = world.service.accounts
    old = accounts.add("eve", "viewer", 60.0, ADMIN).token
    assert "eve" in admin.get(f"{PAGE}/eve").text
    changed = send(admin, "/eve/change", role="operator", days="keep")
    assert changed.headers["location"] == f"{PAGE}?done=changed"
    assert (accounts.get("eve").role, accounts.get("eve").expires) == ("operator", world.now + 60.0)
    send(admin, "/eve/change", role="operator", days="")
    assert accounts.get("eve").expires is None
    new = secret(send(admin, "/eve/rotate"))
    assert Visitor(world.app).sign_in(old).status_code == 403
    assert Visitor(world.app).sign_in(new).status_code == 303
    assert send(admin, "/eve/revoke").headers["location"] == f"{PAGE}?done=revoked"
    assert accounts.get("eve").state(world.now) == "revoked"
    assert "The account was revoked." in admin.get(f"{PAGE}?done=revoked").text
    assert "Add one of this name below" in admin.get(f"{PAGE}/eve").text


@pytest.mark.parametrize(
    ("path", "form", "status", "words"),
    [
        ("", {"name": "no name", "role": "viewer", "days": ""}, 422, "found account"),
        ("", {"name": "root", "role": "viewer", "days": ""}, 409, "already exists"),
        ("", {"name": "eve", "role": "king", "days": ""}, 422, "found the role"),
        ("", {"name": "eve", "role": "viewer", "days": "7"}, 422, "found days"),
        ("", {"name": "eve", "role": "wall", "fleet": FLEET, "days": ""}, 422, "never expires"),
        ("", {"name": "eve", "role": "wall", "fleet": "nowhere", "days": "30"}, 404, "no fleet"),
        (f"/{ADMIN.name}/revoke", {}, 409, "add another one first"),
        (f"/{ADMIN.name}/change", {"role": "viewer", "days": "keep"}, 409, "add another one first"),
        ("/nobody/rotate", {}, 404, "no account nobody"),
    ],
)
def test_what_is_refused_is_said_on_the_page(world, admin, path, form, status, words):
    before = world.service.accounts.all()
    answer = send(admin, path, **form)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert "Not done" in answer.text
    assert world.service.accounts.all() == before


def test_a_form_of_another_place_changes_nothing(world, admin):
    form = {"csrf": admin.csrf(), "name": "eve", "role": "admin", "days": ""}
    assert admin.post(PAGE, form | {"csrf": "0" * 64}).status_code == 403
    assert admin.post(PAGE, form, Origin="http://elsewhere").status_code == 403
    assert [each.name for each in world.service.accounts.all()] == ["root"]
