"""The log page: who did what in a fleet, newest first."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import APIRouter, Response

from edgemerge.server.audit import Entry
from edgemerge.server.dashboard.merge import parse_number, search_text
from edgemerge.server.dashboard.sign_in import ViewerPage
from edgemerge.server.http import Name

ENTRIES_PER_PAGE = 50
TIME_DETAILS = ("expires", "until")  # details that are times
DIGEST_PATTERN = "[0-9a-f]{64}"  # is shown by its first letters
AFTER_LAST = 2**62  # a number after every entry
ACTION_WORDS = {  # in words, with the subject behind them
    "contribute": "shared",
    "equivocation": "sent two contents under one revision of",
    "leave out": "leaves out of a sum, since it does not fit,",
    "create": "created the fleet",
    "delete": "deleted the fleet",
    "invite": "invited",
    "enrol": "enrolled as",
    "revoke": "revoked the token of",
    "replace": "invited new hardware of",
    "add account": "made the wall link",
    "change account": "changed the wall link",
    "rotate account": "made a new address for the wall link",
    "revoke account": "revoked the wall link",
    "drop": "dropped what was shared by",
    "adopt": "chose what is adopted by",
    "exclude contribution": "excluded the contribution",
    "revoke contribution": "excluded the contribution",  # the old word
    "approve contribution": "approved the contribution",
    "dismiss contribution": "dismissed the contribution",
    "trust": "changed the trust of",
    "undo": "undid",
    "share fault": "shared the fault",
    "withdraw fault": "withdrew the fault",
    "set receiver": "set the receiver",
    "remove receiver": "removed the receiver",
    "test receiver": "sent a test message to",
    "review": "reviewed",
    "review done": "acted upon reviews of",
    "review refused": "refused reviews of",
}
FILTERS = {
    "": "everything",
    "-contribute": "everything but contributions",
    **{action: action for action in ACTION_WORDS},
}
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


@router.get("/fleets/{fleet}/log")
def show_log(fleet: Name, page: ViewerPage) -> Response:
    """Show a stretch of the audit log."""
    query = page.request.query_params
    action, find = search_text(query.get("action", "")), search_text(query.get("find", ""))
    before = parse_number(query.get("before", "")) or AFTER_LAST
    found = page.service.audit_newest_first(
        fleet, before, ENTRIES_PER_PAGE + 1, action=action, subject=find
    )
    rows = [
        LogRow(each, ACTION_WORDS.get(each.action, each.action), parse_detail(each.detail))
        for each in found[:ENTRIES_PER_PAGE]
    ]
    values: dict[str, Any] = {"tab": "Audit log", "fleet": fleet, "choices": FILTERS}
    values |= {"action": action, "find": find, "newest": before == AFTER_LAST}
    values |= {"rows": rows, "older": len(found) > ENTRIES_PER_PAGE}
    return page.render("log.html", **values)


def parse_detail(text: str) -> list[Detail]:
    """Return what else is known, word by word; as it is stored if it cannot be taken apart.

    >>> [tuple(word) for word in parse_detail('{"expires":1e9,"revision":3,"sources":["a","b"]}')]
    [('expires', '1,000,000,000', 1000000000.0), ('revision', '3', None), ('sources', 'a, b', None)]
    """
    try:
        found = json.loads(text)
    except ValueError:
        return [Detail("detail", text)]
    if not isinstance(found, dict):
        return [Detail("detail", text)]
    return [
        Detail(str(name), _format_value(value), value if name in TIME_DETAILS else None)
        for name, value in found.items()
    ]


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    if isinstance(value, str) and re.fullmatch(DIGEST_PATTERN, value):
        return f"{value[:12]}…"
    return f"{value:,.10g}" if isinstance(value, float) else str(value)
