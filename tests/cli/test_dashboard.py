"""`edgemerge dashboard`: an address, and a link that signs in once."""

import json
import re
import webbrowser
from http.client import HTTPConnection

import pytest

from edgemerge.core.errors import RejectedError
from edgemerge.exchange import client as hubs
from edgemerge.exchange.connection import Reply
from tests.cli.calls import call, failure
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.slow


def asked(hub, *words):
    return call("dashboard", "--server", hub.url, "--token-file", hub.token, *words)


def status_of(hub, link):
    """What the server says to somebody who presses the button behind the link."""
    there = HTTPConnection(hub.url.removeprefix("http://"), timeout=DEADLINE_S)
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": hub.url}
    try:
        there.request("POST", "/ui/sign-in", "link=" + link.partition("link=")[2], headers)
        return there.getresponse().status
    finally:
        there.close()


def test_it_prints_the_address_and_a_link_that_signs_in_once(hub):
    result = asked(hub)
    assert result.exit_code == 0, result.stderr
    assert f"address  {hub.url}/ui/\n" in result.stdout
    link = re.findall(r"^link +(\S+)$", result.stdout, re.MULTILINE)[0]
    assert link.startswith(f"{hub.url}/ui/sign-in?link=eml_")
    assert [status_of(hub, link) for _ in range(2)] == [303, 403]


def test_machines_get_it_as_json(hub):
    found = json.loads(
        call("dashboard", "--server", hub.url + "/", "--token-file", hub.token, "--json").stdout
    )
    assert found["address"] == f"{hub.url}/ui/"
    assert status_of(hub, found["link"]) == 303
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["expires"])


def test_it_opens_the_browser_if_asked(hub, monkeypatch):
    opened = []

    def open_it(link):
        opened.append(link)
        return True

    monkeypatch.setattr(webbrowser, "open", open_it)
    asked(hub)
    assert opened == []
    result = asked(hub, "--open")
    assert (result.exit_code, opened[0] in result.stdout) == (0, True)


def test_without_a_browser_it_says_what_to_do(hub, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda _link: False)
    result = asked(hub, "--open")
    assert result.exit_code == 1
    assert "/ui/sign-in?link=eml_" in result.stdout
    assert "copy the link" in result.stderr


def test_a_token_that_is_not_an_operators_is_refused(hub, tmp_path):
    (tmp_path / "token").write_text("emo_nobody\n", encoding="utf-8")
    (tmp_path / "token").chmod(0o600)
    said = failure(call("dashboard", "--server", hub.url, "--token-file", tmp_path / "token"))
    assert "unknown" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    ["@elsewhere/ui/", "//elsewhere", None, 7, "/ui/sign-in?link=a\x1b[2J", "/ui/sign-in?link="],
)
def test_a_server_cannot_lead_the_browser_elsewhere(monkeypatch, path):
    body = json.dumps({"path": path, "expires": 0}).encode()
    monkeypatch.setattr(hubs.ServerClient, "_ask", lambda *_, **__: Reply(201, {}, body))
    with pytest.raises(RejectedError, match="expected /ui/sign-in"):
        hubs.ServerClient("http://127.0.0.1:9").sign_in_link()


@pytest.mark.slow
def test_the_server_logs_where_its_dashboard_is(hub):
    said = (hub.folder / "log").read_text(encoding="utf-8")
    assert f"info dashboard address={hub.url}/ui/\n" in said
    assert "emo_" not in said
