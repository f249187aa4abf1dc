"""`edgemerge fleet audit`: who did what on a server, and whether that record was changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import click

from edgemerge.cli.chain import verified
from edgemerge.cli.fleet import dated
from edgemerge.cli.group import Failure
from edgemerge.cli.hub import connected, hub_options
from edgemerge.cli.output import json_option, remark, say_json, say_table

PAGE = 500
COLUMNS = {
    "seq": "SEQ",
    "at": "AT",
    "actor": "ACTOR",
    "action": "ACTION",
    "fleet": "FLEET",
    "subject": "SUBJECT",
}


@click.command()
@click.option("--fleet", help="Show only what concerns this fleet.")
@click.option("--last", type=click.IntRange(min=0), default=20, show_default=True, help="Entries.")
@click.option("--known", metavar="HASH", help="A head noted earlier; it must still be there.")
@hub_options
@json_option
def audit(fleet: str | None, last: int, known: str | None, *, as_json: bool, **where: Any) -> None:
    """Show who did what, after checking the record.

    Each entry is sealed by a hash that covers the one before. Whoever rewrites all of it goes
    unnoticed, unless you note the head that is printed and give it as --known later.
    """
    shown: deque[Any] = deque(maxlen=last)
    seq, head, met = 0, "", known is None
    with connected(**where) as hub:
        for entry in verified(_entries(hub)):
            seq, head = entry["seq"], entry["hash"]
            met = met or head == known
            if fleet in (None, entry["fleet"]):
                shown.append(dated(entry))
    if not met:
        raise Failure(f"found no entry with the hash {known}: the audit log was rewritten since")
    if as_json:
        say_json({"verified": seq, "head": head, "entries": list(shown)})
    else:
        say_table(shown, COLUMNS)
    remark(f"All {seq:,} entries are as they were written. Head: {head}")


def _entries(hub: Any) -> Iterator[dict[str, Any]]:
    after = 0
    while found := hub.audit(after=after, limit=PAGE)["entries"]:
        yield from found
        after = found[-1]["seq"]
