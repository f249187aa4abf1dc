"""Commands of the operator about trust: the fleet's rule, what waits, approve and dismiss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from edgemerge.cli.fleet import print_choice, with_dates
from edgemerge.cli.group import example, options
from edgemerge.cli.options import operator_connection, server_options
from edgemerge.cli.output import headings, json_option, print_json, print_table, remark

WAITING_COLUMNS = headings(
    *("device", "incarnation", "pattern", "revision", "samples", "since", "like", "why")
)

decision_options = options(
    click.argument("fleet"),
    click.argument("device"),
    click.argument("incarnation", type=click.IntRange(min=0)),
    click.argument("pattern"),
    click.option(
        "--revision",
        type=click.IntRange(min=0),
        help="Decide about this revision only; refuse if another one has come.",
    ),
    click.option("--comment", default="", help="One line for those who read the log."),
)


@click.command(epilog=example("edgemerge fleet trust pumps quorum:2"))
@click.argument("fleet")
@click.argument("rule")
@server_options
@json_option
def trust(fleet: str, rule: str, *, as_json: bool, **where: Any) -> None:
    """Choose which contributions others adopt at once.

    RULE is members: those of every enrolled device. quorum:K: those of which K devices contributed
    a similar pattern. person: those that an operator approved. What does not pass is stored and
    waits; `waiting` lists it.
    """
    with operator_connection(**where) as client:
        found = with_dates(client.set_trust(fleet, rule))
    print_json(found) if as_json else click.echo(f"The trust of {fleet} is {found['trust']}.")
    remark("Devices that report follow it soon, others at their next exchange.")


@click.command(epilog=example("edgemerge fleet waiting pumps"))
@click.argument("fleet")
@server_options
@json_option
def waiting(fleet: str, *, as_json: bool, **where: Any) -> None:
    """List contributions that wait for approval.

    They are stored, and in no other device's sum. LIKE is the trusted contribution that is most
    similar, and how much larger the loss is than usual; up to 2.5 counts as similar.
    """
    with operator_connection(**where) as client:
        found = [with_dates(each) for each in client.waiting(fleet)]
    print_json(found) if as_json else print_table(
        [{**each, "like": describe_likeness(each)} for each in found], WAITING_COLUMNS
    )
    if not found:
        remark(f"Nothing waits in {fleet}.")


@click.command(
    epilog=example("edgemerge fleet approve pumps pump-3 0 normal --comment 'looked at it'")
)
@decision_options
@server_options
@json_option
def approve(*, as_json: bool, **about: Any) -> None:
    """Let other devices adopt a contribution.

    It covers newer revisions while they stay similar to what is approved now. `undo` takes it back.
    """
    print_choice(_decide("approve", **about), as_json=as_json)


@click.command(epilog=example("edgemerge fleet dismiss pumps pump-3 0 normal"))
@decision_options
@server_options
@json_option
def dismiss(*, as_json: bool, **about: Any) -> None:
    """Let no other device adopt a contribution, and list it no longer.

    It covers newer revisions. `undo` takes it back.
    """
    print_choice(_decide("dismiss", **about), as_json=as_json)


def _decide(
    decision: str,
    fleet: str,
    device: str,
    incarnation: int,
    pattern: str,
    *,
    revision: int | None,
    comment: str,
    **where: Any,
) -> dict[str, Any]:
    key, said = (device, incarnation, pattern), {"revision": revision, "comment": comment}
    with operator_connection(**where) as client:
        made: dict[str, Any] = client.decide(fleet, key, decision, **said)
    return made


def describe_likeness(waiting: Mapping[str, Any]) -> str:
    """Describe what a contribution that waits is like."""
    if waiting["nearest"] is None:
        return "none"
    device, _, pattern = waiting["nearest"]
    words = f"{device}, {pattern} ×{waiting['ratio']:.3g}"
    return f"none (nearest {words})" if waiting["like_none"] else words
