"""A world of two fleets and everybody who might ask something of its server, with their tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from edgemerge.server.auth import new_token
from edgemerge.wire.codec import encode
from tests.server.wire import SHARED, Answered, ask, note, push
from tests.services.hub import Running, running
from tests.waiting import until

MINE = {
    "{fleet}": "mine",
    "{device}": "itself",
    "{incarnation}": "0",
    "{pattern}": "normal",
    "{number}": "1",
    "{version}": "1",
    "{receiver}": "chat",
    "{account}": "eve",
    "{epoch}": "1",
}
ADMINS = ("admin",)
OPERATORS = ("operator", "admin")
PEOPLE = ("viewer", "operator", "admin")
DEVICES = ("itself", "peer")
KNOWN = (*PEOPLE, *DEVICES, "foreigner")
MEMBERS = (*OPERATORS, *DEVICES)
READERS = (*PEOPLE, *DEVICES)
CONTRIBUTION = "/fleets/{fleet}/contributions/{device}/{incarnation}/{pattern}"
MASKED = "/fleets/{fleet}/masked/{device}"
KEYS = b'{"agreement": "%s", "verification": "%s"}' % (b"0" * 64, b"0" * 64)
EVERYBODY = ("everybody",)


@dataclass(frozen=True)
class Route:
    """One entry of the table: who may, what is sent; `masked` if only a masked fleet has it."""

    who: tuple[str, ...]
    body: bytes | None = None
    masked: bool = False


ROUTES = {  # in an order in which all of them can be asked by those who may
    "GET /healthz": Route(EVERYBODY),
    "GET /readyz": Route(EVERYBODY),
    "GET /metrics": Route(EVERYBODY),
    "GET /status": Route(PEOPLE),
    "GET /audit": Route(PEOPLE),
    "GET /fleets": Route(KNOWN),
    "PUT /fleets/{fleet}": Route(ADMINS, encode(SHARED)),
    "GET /fleets/{fleet}": Route(READERS),
    "GET /fleets/{fleet}/projection": Route(READERS),
    "GET /fleets/{fleet}/devices": Route(PEOPLE),
    "POST /fleets/{fleet}/invitations": Route(OPERATORS, b'{"device": null}'),
    "POST /fleets/{fleet}/devices": Route(("an invitation",), b'{"device": "newcomer"}'),
    "POST /fleets/{fleet}/devices/{device}/report": Route(
        ("itself",),
        b'{"sent": 5, "status": {"samples": 9, "learnt": 9, "alarms": 0, "monitor": {"phase": '
        b'"watching", "ready": true, "episodes": [{"number": 1, "began": 4}]}}}',
    ),
    "GET /fleets/{fleet}/devices/{device}": Route(PEOPLE),
    "GET /fleets/{fleet}/devices/{device}/scores": Route(PEOPLE),
    "GET /fleets/{fleet}/devices/{device}/scores.csv": Route(PEOPLE),
    "GET /fleets/{fleet}/devices/{device}/settings": Route(PEOPLE),
    "PUT /fleets/{fleet}/devices/{device}/settings": Route(OPERATORS, b'{"limit": 5}'),
    "DELETE /fleets/{fleet}/devices/{device}/settings/{version}": Route(OPERATORS),
    "GET /fleets/{fleet}/configuration": Route(PEOPLE),
    "PUT /fleets/{fleet}/configuration": Route(OPERATORS, b'{"tables": {"monitor": {"limit": 5}}}'),
    "DELETE /fleets/{fleet}/configuration/{version}": Route(OPERATORS),
    "GET /fleets/{fleet}/devices/{device}/configuration": Route(PEOPLE),
    "PUT /fleets/{fleet}/devices/{device}/configuration": Route(
        OPERATORS, b'{"tables": {"monitor": {"limit": 5}}}'
    ),
    "DELETE /fleets/{fleet}/devices/{device}/configuration/{version}": Route(OPERATORS),
    "GET /fleets/{fleet}/devices/{device}/reviews": Route(PEOPLE),
    "POST /fleets/{fleet}/devices/{device}/reviews": Route(
        OPERATORS, b'{"decision": "acknowledge"}'
    ),
    "GET /fleets/{fleet}/episodes": Route(PEOPLE),
    "PUT /fleets/{fleet}/episodes/{number}/comment": Route(OPERATORS, b'{"comment": "seen"}'),
    f"PUT {CONTRIBUTION}": Route(("itself",), encode(note("itself", 2))),
    f"GET {CONTRIBUTION}": Route((*OPERATORS, "itself")),
    "GET /fleets/{fleet}/contributions": Route(READERS),
    "GET /fleets/{fleet}/total": Route(MEMBERS),
    "GET /fleets/{fleet}/patterns": Route(MEMBERS),
    "PUT /fleets/{fleet}/faults/{device}/{incarnation}/{pattern}": Route(
        ("itself",), encode(replace(note("itself", 2), kind="fault"))
    ),
    "GET /fleets/{fleet}/cohorts": Route(PEOPLE),
    "GET /fleets/{fleet}/suspects": Route(PEOPLE),
    "POST /fleets/{fleet}/cohorts": Route(ADMINS, b"{}", masked=True),
    "DELETE /fleets/{fleet}/cohorts/{cohort}": Route(OPERATORS, masked=True),
    f"PUT {MASKED}/keys": Route(("itself",), KEYS, masked=True),
    f"DELETE {MASKED}/keys": Route(OPERATORS, masked=True),
    f"GET {MASKED}/status": Route(("itself",), masked=True),
    f"GET {MASKED}/cohort": Route(("itself",), masked=True),
    f"PUT {MASKED}/epochs/{{epoch}}/upload": Route(("itself",), b"", masked=True),
    f"PUT {MASKED}/epochs/{{epoch}}/signature": Route(("itself",), b"", masked=True),
    f"GET {MASKED}/epochs/{{epoch}}/request": Route(("itself",), masked=True),
    f"PUT {MASKED}/epochs/{{epoch}}/answer": Route(("itself",), b"", masked=True),
    f"GET {MASKED}/epochs/{{epoch}}": Route(("itself",), masked=True),
    f"GET {MASKED}/total": Route(("itself",), masked=True),
    "GET /fleets/{fleet}/faults": Route(MEMBERS),
    "GET /fleets/{fleet}/faults/list": Route(PEOPLE),
    "POST /fleets/{fleet}/choices": Route(
        OPERATORS, b'{"kind": "adopt", "sources": ["peer"], "targets": ["itself"]}'
    ),
    "POST /sign-in-links": Route(PEOPLE),
    "GET /fleets/{fleet}/choices": Route(PEOPLE),
    "GET /fleets/{fleet}/waiting": Route(PEOPLE),
    "PUT /fleets/{fleet}/receivers/{receiver}": Route(
        OPERATORS, b'{"kind": "slack", "url": "http://127.0.0.1:9/hook", "secret": "s3cret"}'
    ),
    "GET /fleets/{fleet}/receivers": Route(PEOPLE),
    "POST /fleets/{fleet}/receivers/{receiver}/test": Route(OPERATORS),
    "DELETE /fleets/{fleet}/receivers/{receiver}": Route(OPERATORS),
    "PUT /fleets/{fleet}/trust": Route(ADMINS, body=b'{"trust": "quorum:2"}'),
    "POST /fleets/{fleet}/preview": Route(PEOPLE, b'{"sources": ["peer"], "targets": ["itself"]}'),
    "GET /fleets/{fleet}/similarity": Route(PEOPLE),
    "GET /fleets/{fleet}/likeness": Route(PEOPLE),
    "DELETE /fleets/{fleet}/choices/{number}": Route(OPERATORS),
    "DELETE /fleets/{fleet}/contributions/{device}": Route(("itself", *OPERATORS)),
    "DELETE /fleets/{fleet}/contributions/{device}/{incarnation}": Route(("itself", *OPERATORS)),
    "GET /fleets/{fleet}/devices/{device}/desired": Route(("itself", *PEOPLE)),
    "POST /fleets/{fleet}/devices/{device}/replacement": Route(OPERATORS, b"{}"),
    "GET /accounts": Route(ADMINS),
    "POST /accounts": Route(ADMINS, b'{"name": "zoe", "role": "viewer"}'),
    "PUT /accounts/{account}": Route(ADMINS, b'{"role": "operator"}'),
    "POST /accounts/{account}/rotate": Route(ADMINS, b"{}"),
    "DELETE /accounts/{account}": Route(ADMINS),
    "POST /fleets/{fleet}/wall-links": Route(ADMINS, b'{"name": "hall-c"}'),
    "DELETE /fleets/{fleet}/devices/{device}": Route(OPERATORS),
    "DELETE /fleets/{fleet}": Route(ADMINS),
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
    "a revoked account",
    "an expired account",
    "a rotated account",
    "a wall link",
)
STRANGERS = ("nobody", *STRANGE, *USED_UP)
CALLERS = (*KNOWN, "an invitation", *STRANGERS)


@contextmanager
def world(database: str) -> Iterator[World]:
    """Serve a world in which everybody has a part, until the block ends."""
    with running(database) as here:
        hub = here.operator
        for fleet in ("mine", "theirs", "former"):
            hub.create_fleet(fleet, SHARED, least=1)
        tokens = {"admin": here.token} | {
            who: hub.add_account(name, role, valid_s=valid_s)["token"]
            for who, name, role, valid_s in (
                ("operator", "olga", "operator", None),
                ("viewer", "vera", "viewer", 3600.0),
                ("of nobody who calls", "eve", "viewer", None),
                ("a revoked account", "gone", "admin", None),
                ("an expired account", "late", "admin", 1e-6),
                ("a rotated account", "anew", "admin", None),
            )
        }
        hub.revoke_account("gone")
        hub.rotate_account("anew")
        tokens["a wall link"] = hub.add_wall_link("mine", "hall-b")["path"].rpartition("/")[2]
        tokens |= {
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
