"""`edgemerge demo`: a server and five agents, before and after merging once."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import click

from edgemerge.cli.group import CommandError, needs
from edgemerge.cli.output import json_option, print_json, print_rich, remark

OUTPUT_FILES = {
    "Database of the server": "fleet.sqlite",
    "Token of the operator": "fleet.sqlite.operator-token",
    "Settings of the agents": "*.toml",
    "What they have learnt": "*/agent.state",
    "Logs": "*.log",
}


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("edgemerge-demo"),
    show_default=True,
    help="Folder for the figure and all that the demo leaves.",
)
@click.option(
    "--data",
    type=click.Choice(["pumps", "har"]),
    default="pumps",
    show_default=True,
    help="Simulated pumps, or real people's motion (har.npz in EDGEMERGE_DATA).",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    help="Seed of simulation and projection.",
)
@click.option(
    "--keep/--no-keep",
    default=None,
    help="Leave everything running until Ctrl-C; at a terminal that is so by itself.",
)
@json_option
def demo(out: Path, data: str, seed: int, *, keep: bool | None, as_json: bool) -> None:
    """Show five real agents before and after merging.

    Starts a server and five agents on this machine. Each agent learns one pattern of normal, alone
    and sample by sample. Then all exchange what they learnt, once. A table goes to the terminal, a
    figure to the folder, and the fleet can be seen on a page, whose address is printed.
    """
    needs("server", "fastapi")
    from edgemerge.demo.scenario import interrupted_by_signals, run_demo

    shown = load_dataset(data, seed)
    stays = sys.stdout.isatty() and not as_json if keep is None else keep

    def done(outcome: Any, fleet: Any) -> None:
        print_outcome(outcome, out, as_json=as_json)
        print_dashboard_link(fleet)
        if stays:
            keep_running(fleet, shown, seed)
        else:
            remark("\nAll of it ends now, and the page too: --keep leaves everything running.")

    with interrupted_by_signals():
        run_demo(shown, seed, out / "fleet", say=remark, done=done, quiet=as_json)


def load_dataset(data: str, seed: int) -> Any:
    """Give what the devices are to see."""
    from edgemerge.demo.datasets import har, pumps

    if data == "pumps":
        return pumps(seed)
    return har(Path(os.environ.get("EDGEMERGE_DATA", "data")) / "har" / "har.npz", seed)


def print_outcome(outcome: Any, out: Path, *, as_json: bool) -> None:
    """Print the table, draw the figure, and say where everything lies."""
    from edgemerge.demo.report import outcome_as_json, result_table, summary_text

    found = outcome_as_json(outcome)
    (out / "demo.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    if as_json:
        print_json(found)
    else:
        print_rich(result_table(outcome), "", summary_text(outcome), "")
    try:
        needs("plot", "edgemerge.demo.figure").plot(outcome, out / "demo.png")
        remark(f"Figure: {out / 'demo.png'}")
    except CommandError as advice:
        remark(f"No figure: {advice.message}")
    remark(f"Numbers: {out / 'demo.json'}")
    for words, name in OUTPUT_FILES.items():
        remark(f"{words}: {out / 'fleet' / name}")
    remark(f"Took {outcome.seconds:.0f} s.")


def print_dashboard_link(fleet: Any) -> None:
    """Say where the fleet can be seen, with a link that signs in once."""
    hub = fleet.operator
    try:
        link = hub.sign_in_link()["path"]
    finally:
        hub.close()
    remark(
        f"\nThe fleet on a page: {fleet.url}/ui/\n"
        f"Signs you in, once, within ten minutes: {fleet.url}{link}"
    )


def keep_running(fleet: Any, shown: Any, seed: int) -> None:
    """Let the devices go on until Ctrl-C, and say what can be tried meanwhile."""
    from edgemerge.demo.scenario import feed_forever

    folder, token = fleet.folder, fleet.folder / "fleet.sqlite.operator-token"
    where = f"--server {fleet.url} --token-file {token}"
    with suppress(KeyboardInterrupt):
        remark(
            "\nStill running: the devices go on, and now and then one of them has a fault.\n"
            "In another terminal, for instance:\n"
            f"  edgemerge dashboard {where}\n"
            f"  edgemerge fleet contributions demo {where}\n"
            f"  edgemerge sync {next(folder.glob('*.toml'))}\n"
            "Ctrl-C ends it."
        )
        feed_forever(fleet, shown, seed=seed, stop=Event())
