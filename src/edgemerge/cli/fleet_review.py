"""Commands of the operator for one device's monitor: show it, review its patterns and episodes."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any

import click

from edgemerge.cli.fleet import with_dates
from edgemerge.cli.group import CommandError, ExitCode, example
from edgemerge.cli.monitor import (
    PATTERN_DECISIONS,
    hours_option,
    print_monitor,
    snooze_time,
)
from edgemerge.cli.options import operator_connection, server_options
from edgemerge.cli.output import (
    confirm,
    format_time,
    headings,
    json_option,
    print_json,
    print_table,
    remark,
)
from edgemerge.core.errors import SettingError

DECISIONS = (
    *PATTERN_DECISIONS,
    *("acknowledge", "snooze", "watch", "relearn", "accept-drift"),
)
REVIEW_COLUMNS = headings("number", "at", "by", "what", "state", "comment")


@click.command(epilog=example("edgemerge fleet monitor pumps pump-3"))
@click.argument("fleet")
@click.argument("device")
@server_options
@json_option
def monitor(fleet: str, device: str, *, as_json: bool, **where: Any) -> None:
    """Show a device's episodes, patterns, limit and drift.

    As the device reported them last. Episodes are shown until they are acknowledged.
    """
    with operator_connection(**where) as client:
        found = client.device(fleet, device)
    status = (found["status"] or {}).get("monitor")
    if status is None:
        raise CommandError(
            f"{device} has not reported a monitor: see that its agent runs, reports, and is of a "
            "version that has one",
            ExitCode.NO_DATA,
        )
    if as_json:
        print_json(found)
        return
    print_monitor(
        status,
        state=found["state"],
        heard=format_time(found["heard"]),
        **{"reviews waiting": found["waiting"]},
    )


@click.command(
    epilog=example(
        "edgemerge fleet review pumps pump-3 approve odd-1 --comment 'a new speed'",
        "edgemerge fleet review pumps pump-3 fault odd-2 'worn bearing'",
        "edgemerge fleet review pumps pump-3 acknowledge --episode 7",
        "edgemerge fleet review pumps pump-3 snooze '8 hours'",
    )
)
@click.argument("fleet")
@click.argument("device")
@click.argument("decision", type=click.Choice(DECISIONS))
@click.argument("pattern", required=False, metavar="[PATTERN|TIME]")
@click.argument("name", required=False)
@click.option("--episode", type=click.IntRange(min=0), help="Acknowledge this one, not all.")
@hours_option
@click.option("--comment", default="", help="One line for those who read the log.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@server_options
@json_option
def review(
    fleet: str,
    device: str,
    decision: str,
    pattern: str | None,
    name: str | None,
    *,
    episode: int | None,
    hours: float | None,
    comment: str,
    yes: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Decide about a device's pattern, episode or learning.

    approve: PATTERN is normal and is learnt. fault: later alarms carry NAME. dismiss: it is no
    longer shown. undo: PATTERN is unreviewed again, exactly.

    acknowledge: episodes were seen. snooze: no alarm for a TIME: how long ("8 hours"), until when
    (2026-11-17T18:00, in UTC unless it says otherwise), or off. watch: end commissioning now.
    relearn: forget what the device saw and begin commissioning again. accept-drift: what was learnt
    up to now is normal.

    The device acts once, when it next reports, also if it is offline now. `monitor` lists patterns
    and episodes, `reviews` what became of decisions.
    """
    asked: dict[str, Any] = {"comment": comment}
    if decision == "snooze":
        asked["until"] = _until(snooze_time(pattern, hours))
        pattern, hours = None, None
    _must_fit(decision, pattern, name, hours)
    asked |= {"pattern": pattern} if pattern else {}
    asked |= {"name": name} if name else {}
    asked |= {} if episode is None else {"episode": episode}
    if decision == "relearn":
        confirm(f"Let {device} forget all that it has learnt by itself?", yes=yes)
    with operator_connection(**where) as client:
        made = client.review(fleet, device, decision.replace("-", "_"), **asked)
    print_json(_dated(made)) if as_json else click.echo(
        f"Review {made['number']} of {device}: {describe_review(made)}."
    )
    remark("The device acts when it next reports.")


@click.command(epilog=example("edgemerge fleet reviews pumps pump-3"))
@click.argument("fleet")
@click.argument("device")
@server_options
@json_option
def reviews(fleet: str, device: str, *, as_json: bool, **where: Any) -> None:
    """List decisions about a device: waiting, done or refused."""
    with operator_connection(**where) as client:
        found = [_dated(each) for each in client.reviews(fleet, device)]
    if as_json:
        print_json(found)
        return
    rows = [
        {**each, "what": describe_review(each), "state": _state(each), "comment": each["comment"]}
        for each in found
    ]
    print_table(rows, REVIEW_COLUMNS)
    if not rows:
        remark(f"No reviews of {device} yet.")


def _must_fit(decision: str, pattern: str | None, name: str | None, hours: float | None) -> None:
    if (pattern is not None) != (decision in PATTERN_DECISIONS):
        raise click.UsageError(
            f"found {'a' if pattern else 'no'} PATTERN for {decision}, expected one for "
            f"{', '.join(PATTERN_DECISIONS)} only"
        )
    if (name is not None) != (decision == "fault"):
        raise click.UsageError("a fault needs a NAME, and nothing else has one: fault PATTERN NAME")
    if hours is not None:
        raise click.UsageError(f"found --hours for {decision}, expected it for snooze only")


def _until(asked: str) -> float | None:
    from edgemerge.agent.reviewer import parse_time

    try:
        return parse_time(asked, time())
    except SettingError as error:
        raise click.UsageError(str(error)) from None


def describe_review(review: Mapping[str, Any]) -> str:
    """Describe a decision in words."""
    words = [review["decision"].replace("_", "-"), review["pattern"], review["name"]]
    if review["decision"] == "acknowledge":
        words.append("all" if review["episode"] is None else f"episode {review['episode']}")
    if review["decision"] == "snooze":
        until = format_time(review["until"])
        words.append("ended" if until is None else f"until {until}")
    return " ".join(word for word in words if word)


def _state(review: Mapping[str, Any]) -> str:
    return f"refused: {review['why']}" if review["state"] == "refused" else review["state"]


def _dated(review: Mapping[str, Any]) -> dict[str, Any]:
    return with_dates(review) | {"until": format_time(review["until"])}
