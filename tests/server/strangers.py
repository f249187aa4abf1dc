"""A world of two fleets and everybody who might ask something of its server, with their tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from edgemerge.server.auth import new_token
from edgemerge.wire.codec import encode
from tests.server.wire import SHARED, Answered, ask, note, push, until
from tests.services.hub import Running, running

MINE = {
    "{fleet}": "mine",
    "{device}": "itself",
    "{incarnation}": "0",
    "{pattern}": "normal",
    "{number}": "1",
    "{version}": "1",
    "{receiver}": "chat",
}
KNOWN = ("operator", "itself", "peer", "foreigner")
MEMBERS = ("operator", "itself", "peer")
CONTRIBUTION = "/fleets/{fleet}/contributions/{device}/{incarnation}/{pattern}"
EVERYBODY = ("everybody",)


@dataclass(frozen=True)
class Route:
    """One entry of the table: who may, what is sent; `last` for those after which less is left."""

    who: tuple[str, ...]
    body: bytes | None = None


ROUTES = {  # in an order in which all of them can be asked by those who may
    "GET /healthz": Route(EVERYBODY),
    "GET /readyz": Route(EVERYBODY),
    "GET /metrics": Route(EVERYBODY),
    "GET /status": Route(("operator",)),
    "GET /audit": Route(("operator",)),
    "GET /fleets": Route(KNOWN),
    "PUT /fleets/{fleet}": Route(("operator",), encode(SHARED)),
    "GET /fleets/{fleet}": Route(MEMBERS),
    "GET /fleets/{fleet}/projection": Route(MEMBERS),
    "GET /fleets/{fleet}/devices": Route(("operator",)),
    "POST /fleets/{fleet}/invitations": Route(("operator",), b'{"device": null}'),
    "POST /fleets/{fleet}/devices": Route(("an invitation",), b'{"device": "newcomer"}'),
    "POST /fleets/{fleet}/devices/{device}/report": Route(
        ("itself",),
        b'{"sent": 5, "status": {"samples": 9, "learnt": 9, "alarms": 0, "monitor": {"phase": '
        b'"watching", "ready": true, "episodes": [{"number": 1, "began": 4}]}}}',
    ),
    "GET /fleets/{fleet}/devices/{device}": Route(("operator",)),
    "GET /fleets/{fleet}/devices/{device}/scores": Route(("operator",)),
    "GET /fleets/{fleet}/devices/{device}/scores.csv": Route(("operator",)),
    "GET /fleets/{fleet}/devices/{device}/settings": Route(("operator",)),
    "PUT /fleets/{fleet}/devices/{device}/settings": Route(("operator",), b'{"limit": 5}'),
    "DELETE /fleets/{fleet}/devices/{device}/settings/{version}": Route(("operator",)),
    "GET /fleets/{fleet}/configuration": Route(("operator",)),
    "PUT /fleets/{fleet}/configuration": Route(("operator",), b'{"tables": {}}'),
    "DELETE /fleets/{fleet}/configuration/{version}": Route(("operator",)),
    "GET /fleets/{fleet}/devices/{device}/configuration": Route(("operator",)),
    "PUT /fleets/{fleet}/devices/{device}/configuration": Route(("operator",), b'{"tables": {}}'),
    "DELETE /fleets/{fleet}/devices/{device}/configuration/{version}": Route(("operator",)),
    "GET /fleets/{fleet}/devices/{device}/reviews": Route(("operator",)),
    "POST /fleets/{fleet}/devices/{device}/reviews": Route(
        ("operator",), b'{"decision": "approve", "pattern": "odd-1"}'
    ),
    "GET /fleets/{fleet}/episodes": Route(("operator",)),
    "PUT /fleets/{fleet}/episodes/{number}/comment": Route(("operator",), b'{"comment": "seen"}'),
    f"PUT {CONTRIBUTION}": Route(("itself",), encode(note("itself", 2))),
    f"GET {CONTRIBUTION}": Route(("operator", "itself")),
    "GET /fleets/{fleet}/contributions": Route(MEMBERS),
    "GET /fleets/{fleet}/total": Route(MEMBERS),
    "GET /fleets/{fleet}/patterns": Route(MEMBERS),
    "PUT /fleets/{fleet}/faults/{device}/{incarnation}/{pattern}": Route(
        ("itself",), encode(replace(note("itself", 2), kind="fault"))
    ),
    "GET /fleets/{fleet}/faults": Route(MEMBERS),
    "GET /fleets/{fleet}/faults/list": Route(("operator",)),
    "POST /fleets/{fleet}/choices": Route(
        ("operator",), b'{"kind": "adopt", "sources": ["peer"], "targets": ["itself"]}'
    ),
    "POST /sign-in-links": Route(("operator",)),
    "GET /fleets/{fleet}/choices": Route(("operator",)),
    "GET /fleets/{fleet}/waiting": Route(("operator",)),
    "PUT /fleets/{fleet}/receivers/{receiver}": Route(
        ("operator",), b'{"kind": "slack", "url": "http://127.0.0.1:9/hook", "secret": "s3cret"}'
    ),
    "GET /fleets/{fleet}/receivers": Route(("operator",)),
    "POST /fleets/{fleet}/receivers/{receiver}/test": Route(("operator",)),
    "DELETE /fleets/{fleet}/receivers/{receiver}": Route(("operator",)),
    "PUT /fleets/{fleet}/trust": Route(("operator",), body=b'{"trust": "quorum:2"}'),
    "POST /fleets/{fleet}/preview": Route(
        ("operator",), b'{"sources": ["peer"], "targets": ["itself"]}'
    ),
    "GET /fleets/{fleet}/similarity": Route(("operator",)),
    "GET /fleets/{fleet}/likeness": Route(("operator",)),
    "DELETE /fleets/{fleet}/choices/{number}": Route(("operator",)),
    "DELETE /fleets/{fleet}/contributions/{device}": Route(("itself", "operator")),
    "DELETE /fleets/{fleet}/contributions/{device}/{incarnation}": Route(("itself", "operator")),
    "GET /fleets/{fleet}/devices/{device}/desired": Route(("itself", "operator")),
    "DELETE /fleets/{fleet}/devices/{device}": Route(("operator",)),
    "DELETE /fleets/{fleet}": Route(("operator",)),
}


@dataclass(frozen=True)
class World:
    """A server and who may ask it; `tokens` has what was handed out, also what works no more."""

    here: Running
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(self, route: str, who: str, fleet: str = "mine") -> Answered:
        """Ask for one entry of the table as one of those in the world."""
        method, _, path = route.partition(" ")
        for word, name in {**MINE, "{fleet}": fleet}.items():
            path = path.replace(word, name)
        headers = {"Authorization": STRANGE[who]} if who in STRANGE else {}
        token = self.tokens.get(who)
        return ask(self.here, method, path, token=token, body=ROUTES[route].body, headers=headers)


STRANGE = {
    "an empty token": "Bearer ",
    "garbage": "Bearer garbage",
    "a long token": "Bearer emd_" + "x" * 16_000,
    "a token that is not ASCII": "Bearer emd_\xe4\xff",
    "a token of nobody": f"Bearer {new_token('device')}",
    "an operator's token of nobody": f"Bearer {new_token('operator')}",
    "another scheme": "Basic dGVzdDp0ZXN0",
    "quotes": "Bearer ' or 1=1 --",
}
USED_UP = (
    "revoked",
    "of a deleted fleet",
    "enrolled anew since",
    "a used invitation",
    "an expired invitation",
    "an invitation to another fleet",
    "an invitation for another device",
    "an invitation to a deleted fleet",
)
STRANGERS = ("nobody", *STRANGE, *USED_UP)
CALLERS = (*KNOWN, "an invitation", *STRANGERS)


@contextmanager
def world(database: str) -> Iterator[World]:
    """Serve a world in which everybody has a part, until the block ends."""
    with running(database) as here:
        hub = here.operator
        for fleet in ("mine", "theirs", "former"):
            hub.create_fleet(fleet, SHARED)
        tokens = {"operator": here.token} | {
            who: here.enrol(fleet, device)
            for who, fleet, device in (
                ("itself", "mine", "itself"),
                ("peer", "mine", "peer"),
                ("revoked", "mine", "revoked"),
                ("enrolled anew since", "mine", "anew"),
                ("foreigner", "theirs", "itself"),  # the same name, in another fleet
                ("of a deleted fleet", "former", "itself"),
            )
        }
        here.enrol("mine", "anew")
        invited = {
            "an invitation": hub.invite("mine"),
            "a used invitation": hub.invite("mine"),
            "an expired invitation": hub.invite("mine", valid_s=1e-6),
            "an invitation to another fleet": hub.invite("theirs"),
            "an invitation for another device": hub.invite("mine", "somebody"),
            "an invitation to a deleted fleet": hub.invite("former"),
        }
        until(lambda: here.service.clock() > invited["an expired invitation"]["expires"])
        tokens |= {who: told["token"] for who, told in invited.items()}
        enrolled = ask(
            here,
            "POST",
            "/fleets/mine/devices",
            token=tokens["a used invitation"],
            body=b'{"device": "another"}',
        )
        assert enrolled.status == 201
        assert push(here, tokens["itself"], note("itself")).status == 201
        assert push(here, tokens["peer"], note("peer")).status == 201
        assert push(here, tokens["foreigner"], note("itself"), "theirs").status == 201
        hub.revoke("mine", "revoked")
        hub.delete_fleet("former")
        hub.close()
        yield World(here, tokens)
