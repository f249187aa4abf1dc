"""The server against its own description: whatever fits it, or does not, is answered by it.

Schemathesis makes requests from /openapi.json and holds every answer against it, with all checks.
"""

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema

from edgemerge.server import auth
from tests.server.callers import MINE, ROUTES, world
from tests.server.wire import ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # thousands of requests

EXAMPLES = 5  # of each operation; what has limits is tried at them besides
NAMES = {f"path.{word.strip('{}')}": name for word, name in MINE.items()}
# What fits the description may still be refused with 422 here: a schema cannot say which bytes are
# those of `encode`, nor which of all characters are printable, as the name of a pattern must be,
# nor that a whole number in a report is to be written without a point, nor which decision needs
# a pattern, or which receiver an address, nor that a device has one limit, or a rate in words such
# as "1 per week", nor which tables a configuration may have, nor that a fleet must be masked.
NOT_ALL = [
    "POST /fleets/{fleet}/devices/{device}/report",
    "POST /fleets/{fleet}/devices/{device}/reviews",
    "PUT /fleets/{fleet}/devices/{device}/settings",
    "PUT /fleets/{fleet}/devices/{device}/configuration",
    "PUT /fleets/{fleet}/configuration",
    "PUT /fleets/{fleet}",
    "PUT /fleets/{fleet}/receivers/{receiver}",
    "PUT /fleets/{fleet}/contributions/{device}/{incarnation}/{pattern}",
    "PUT /fleets/{fleet}/faults/{device}/{incarnation}/{pattern}",
    "GET /fleets/{fleet}/contributions/{device}/{incarnation}/{pattern}",
    *(name for name, route in ROUTES.items() if route.masked),
]
LAST = ["DELETE /fleets/{fleet}", "DELETE /fleets/{fleet}/devices/{device}"]  # then nobody is left


@pytest.fixture(autouse=True)
def no_report_is_too_many(monkeypatch):
    """Else most would be answered 429, without a look at them."""
    for name in ("DEVICE_BURST", "TOTAL_BURST"):
        monkeypatch.setattr(auth, name, 1e9)


def settings(operations=(), **more):
    accepted = {"checks": {"positive_data_acceptance": {"enabled": False}}}
    return SchemathesisConfig.from_dict(
        {
            "generation": {"deterministic": True, "max-examples": EXAMPLES, "database": "none"},
            "cache": {"enabled": False},
            "operations": [{"include-name": NOT_ALL, **accepted}, *operations],
            **more,
        }
    )


def asked_of(made, who, **more):
    """Let it ask all it can think of as somebody; give how often it did, and what it found."""
    token = made.tokens.get(who)
    config = settings(headers={"Authorization": f"Bearer {token}"} if token else {}, **more)
    schema = schemathesis.openapi.from_url(f"{made.here.url}/openapi.json", config=config)
    asked, found = 0, []
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            asked += len(event.recorder.cases)
            found += failures_in(event.recorder)
        elif isinstance(event, events.NonFatalError | events.FatalError):
            found.append(repr(event))
    return asked, found


def is_name_as_text(case):
    """Whether names are no list of texts: a query has text alone, so False is a list of a name."""
    query = case.value.query or {}
    given = [query[word] for word in ("device", "without") if word in query]
    return any(
        not isinstance(one, list) or any(isinstance(name, bool | int) for name in one)
        for one in given
    )


def failures_in(recorder):
    """Give what failed, with the request that shows it."""
    failed = [
        (case, node)
        for case, nodes in recorder.checks.items()
        for node in nodes
        if node.status != Status.SUCCESS
        and not (node.name == "negative_data_rejection" and is_name_as_text(recorder.cases[case]))
    ]
    return [
        f"{node.name}: {recorder.cases[case].value.as_curl_command()}\n{node.failure_info}"
        for case, node in failed
    ]


@pytest.mark.long
@pytest.mark.parametrize("who", ["admin", "nobody", "itself"])
def test_every_answer_is_one_that_the_description_promises(tmp_path, who):
    with world(f"sqlite:///{tmp_path / 'fleets.db'}") as made:
        asked, found = asked_of(made, who)
    assert not found, "\n\n".join(found)
    assert asked > 500


@pytest.mark.long
@pytest.mark.parametrize("who", ["itself", "admin"])
def test_so_is_every_answer_about_what_is_there(tmp_path, who):
    alive = [{"include-name": LAST, "enabled": False}]
    # the names replace what was meant to be wrong in an address, which is then rightly accepted
    checks = {"negative_data_rejection": {"enabled": False}}
    with world(f"sqlite:///{tmp_path / 'fleets.db'}") as made:
        asked, found = asked_of(made, who, parameters=NAMES, operations=alive, checks=checks)
    assert not found, "\n\n".join(found)
    assert asked > 500


def test_limits_of_numbers_are_described_in_words_that_others_know(tmp_path):
    with world(f"sqlite:///{tmp_path / 'fleets.db'}") as made:
        told = ask(made.here, "GET", "/openapi.json").body.decode()
    assert '"minimum":0' in told
    assert not [word for word in ("ge", "gt", "le", "lt") if f'"{word}":' in told]
