"""The commands by which an operator chooses who gets messages, with a server."""

import pytest

from edgemerge.cli.group import ExitCode
from tests.cli.calls import failure
from tests.services.receivers import receiver

pytestmark = pytest.mark.slow


def test_a_receiver_is_added_tested_listed_and_removed(hub, fleet, tmp_path):
    assert "has no receivers" in hub.fleet("receivers", "list", fleet).stderr
    (tmp_path / "token").write_text("sesame\n")
    with receiver(200, 503) as server:
        url = f"{server.url}/topic"
        words = ("--kind", "ntfy", "--url", url, "--secret-from", tmp_path / "token")
        made = hub.told(
            "receivers", "add", fleet, "phone", *words, "--event", "alarm", "--every-minutes", 5
        )
        assert (made["every_s"], made["events"], made["secret"]) == (300.0, ["alarm"], "stored")
        assert made["address"] == f"{server.url}/…"
        assert hub.fleet("receivers", "test", fleet, "phone").stdout == "phone took the message.\n"
        assert server.got[0][1]["Authorization"] == "Bearer sesame"
        assert server.bodies[0]["topic"] == "topic"
        found = hub.fleet("receivers", "test", fleet, "phone")
        assert "did not accept the message: the receiver answered 503" in failure(found)
        assert found.exit_code == ExitCode.UNREACHABLE
    found = failure(hub.fleet("receivers", "test", fleet, "phone"), ExitCode.UNREACHABLE)
    assert "did not accept the message: Connection refused; see that it runs, and its add" in found
    listed = hub.fleet("receivers", "list", fleet).stdout
    assert "EVERY_MINUTES" in listed
    assert "phone" in listed
    assert "  5  " in listed
    assert "sesame" not in listed + str(hub.told("receivers", "list", fleet))
    former = hub.fleet("notify", "list", fleet)
    assert former.stdout == listed
    assert "notify is now receivers; use receivers instead" in former.stderr
    assert hub.fleet("receivers", "remove", fleet, "phone").stdout == "Removed phone.\n"
    assert "no receiver phone" in failure(hub.fleet("receivers", "remove", fleet, "phone"))


def test_mail_needs_its_addresses(hub, fleet):
    found = hub.fleet("receivers", "add", fleet, "mail", "--kind", "email", "--host", "localhost")
    assert "needs host, sender and to" in failure(found)
    words = ("--sender", "hub@example.org", "--to", "a@example.org", "--to", "b@example.org")
    more = ("--kind", "email", "--host", "localhost", "--smtp-port", 2525, "--security", "none")
    made = hub.told("receivers", "add", fleet, "mail", *more, *words)
    assert made["address"] == "a@example.org, b@example.org"
    assert made["events"] == ["alarm", "all clear"]
