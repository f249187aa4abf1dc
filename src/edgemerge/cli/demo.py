"""`edgemerge demo`: a server and five agents, before and after merging once."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Any

import click

from edgemerge.cli.group import CommandError, example, needs
from edgemerge.cli.output import json_option, print_json, print_rich, remark

OUTPUT_FILES = {
    "Database of the server": "fleet.sqlite",
    "Token of the operator": "fleet.sqlite.operator-token",
    "Settings of the agents": "*.toml",
    "States of the agents": "*/agent.state",
    "Logs": "*.log",
}
# A closed terminal sends SIGHUP, which Windows does not have.
STOP_SIGNALS = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


@click.command(epilog=example("edgemerge demo --no-keep --out demo"))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("edgemerge-demo"),
    show_default=True,
    help="Folder for the figure and all other files.",
)
@click.option(
    "--data",
    type=click.Choice(["pumps", "har"]),
    default="pumps",
    show_default=True,
    help="Simulated pumps, or motion of real people (har.npz in EDGEMERGE_DATA).",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    help="Seed of the simulation and the projection.",
)
@click.option(
    "--keep/--no-keep",
    default=None,
    help="Keep everything running until Ctrl-C.  [default: --keep on a terminal]",
)
@json_option
def demo(out: Path, data: str, seed: int, *, keep: bool | None, as_json: bool) -> None:
    """Show five agents before and after merging once.

    Starts a server and five agents on this machine. Each agent learns one normal pattern, alone and
    sample by sample. Then all of them exchange once. Prints a table and the address of the
    dashboard, and writes a figure to the folder.
    """
    needs("server", "fastapi")
    from edgemerge.daemon import interrupt_on_signals
    from edgemerge.demo.scenario import run_demo

    shown = load_dataset(data, seed)
    stays = sys.stdout.isatty() and not as_json if keep is None else keep

    def done(outcome: Any, fleet: Any) -> None:
        print_outcome(outcome, out, as_json=as_json)
        print_dashboard_link(fleet)
        if stays:
            keep_running(fleet, shown, seed)
        else:
            remark("\nStopping everything, the dashboard too: --keep keeps it running.")

    with interrupt_on_signals(*STOP_SIGNALS):
        run_demo(shown, seed, out / "fleet", say=remark, done=done, quiet=as_json)


def load_dataset(data: str, seed: int) -> Any:
    """Return the samples of the devices."""
    from edgemerge.demo.datasets import har, pumps

    if data == "pumps":
        return pumps(seed)
    return har(Path(os.environ.get("EDGEMERGE_DATA", "data")) / "har" / "har.npz", seed)


def print_outcome(outcome: Any, out: Path, *, as_json: bool) -> None:
    """Print the table, draw the figure, and list the files."""
    from edgemerge.demo.outcome import outcome_as_json, result_table, summary_text

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
    """Print the dashboard's address, and a link that signs in once."""
    with closing(fleet.operator) as client:
        link = client.sign_in_link()["path"]
    remark(
        f"\nDashboard: {fleet.url}/ui/\n"
        f"Sign in with this link, once, within ten minutes: {fleet.url}{link}"
    )


def keep_running(fleet: Any, shown: Any, seed: int) -> None:
    """Keep the devices running until Ctrl-C, and print commands to try."""
    from edgemerge.demo.scenario import feed_forever

    folder, token = fleet.folder, fleet.folder / "fleet.sqlite.operator-token"
    where = f"--server {fleet.url} --token-file {token}"
    with suppress(KeyboardInterrupt):
        remark(
            "\nStill running: the devices continue, and now and then one has a fault.\n"
            "Try in another terminal:\n"
            f"  edgemerge dashboard {where}\n"
            f"  edgemerge fleet contributions demo {where}\n"
            f"  edgemerge sync {next(folder.glob('*.toml'))}\n"
            "Stop with Ctrl-C."
        )
        feed_forever(fleet, shown, seed=seed, stop=Event())
