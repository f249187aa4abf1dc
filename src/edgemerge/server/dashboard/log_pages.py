"""The log page: who did what in a fleet, newest first."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from edgemerge.server.asking import Name, Serving, in_thread
from edgemerge.server.audit import Entry
from edgemerge.server.dashboard import figures
from edgemerge.server.dashboard.merge_asked import number, plain
from edgemerge.server.dashboard.rendering import page
from edgemerge.server.dashboard.signed_in import SignedIn

ROWS = 50
MOMENTS = ("expires",)  # details that are times
DIGEST = "[0-9a-f]{64}"  # is shown by its first letters
LAST = 2**62  # a number after every entry
ACTIONS = {  # in words, with the subject behind them
    "contribute": "contributed",
    "equivocation": "sent two contents under one revision of",
    "create": "created the fleet",
    "delete": "deleted the fleet",
    "invite": "invited",
    "enrol": "enrolled as",
    "revoke": "ended the access of",
    "drop": "dropped what was contributed by",
    "adopt": "chose what is told to",
    "revoke contribution": "revoked the contribution",
    "undo": "undid",
}
CHOICES = {
    "": "everything",
    "-contribute": "everything but contributions",
    **{action: action for action in ACTIONS},
}
WORDS: dict[str, Any] = {"tab": "Log", "choices": CHOICES, "figures": figures}

router = APIRouter(include_in_schema=False)


class Detail(NamedTuple):
    """A word about an entry; `at` if it is a moment."""

    name: str
    text: str
    at: float | None = None


@dataclass(frozen=True)
class LogRow:
    """An entry, in words."""

    entry: Entry
    words: str
    detail: list[Detail]


@router.get("/ui/fleets/{fleet}/log")
async def show_log(request: Request, fleet: Name, session: SignedIn, service: Serving) -> Response:
    """Show a stretch of the audit log."""
    asked = request.query_params
    action, find = plain(asked.get("action", "")), plain(asked.get("find", ""))
    before = number(asked.get("before", "")) or LAST

    def work() -> Response:
        found = service.audit_back(fleet, before, ROWS + 1, action=action, subject=find)
        rows, older = [_row(entry) for entry in found[:ROWS]], len(found) > ROWS
        asks = {"action": action, "find": find, "newest": before == LAST}
        values: dict[str, Any] = {**WORDS, **asks, "fleet": fleet, "rows": rows, "older": older}
        return page(request, "log.html", session, **values)

    return await in_thread(work)


def _row(entry: Entry) -> LogRow:
    return LogRow(entry, ACTIONS.get(entry.action, entry.action), detail_of(entry.detail))


def detail_of(text: str) -> list[Detail]:
    """Give what else is known, word by word; as it is stored if it cannot be taken apart.

    >>> [tuple(word) for word in detail_of('{"expires":1e9,"revision":3,"sources":["a","b"]}')]
    [('expires', '1,000,000,000', 1000000000.0), ('revision', '3', None), ('sources', 'a, b', None)]
    """
    try:
        found = json.loads(text)
    except ValueError:
        return [Detail("detail", text)]
    if not isinstance(found, dict):
        return [Detail("detail", text)]
    return [
        Detail(str(name), _plain(value), value if name in MOMENTS else None)
        for name, value in found.items()
    ]


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, str) and re.fullmatch(DIGEST, value):
        return f"{value[:12]}…"
    return f"{value:,.10g}" if isinstance(value, float) else str(value)
