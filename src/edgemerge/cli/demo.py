"""`edgemerge demo`: a server and five agents; `edgemerge simulate`: a million devices."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Any

import click

from edgemerge.cli.group import CommandError, ExitCode, example, needs, option
from edgemerge.cli.options import check_writable
from edgemerge.cli.output import (
    headings,
    json_option,
    print_fields,
    print_json,
    print_rich,
    print_table,
    progress,
    remark,
)

OUTPUT_FILES = {
    "Database of the server": "fleet.sqlite",
    "Token of the admin": "fleet.sqlite.admin-token",
    "Settings of the agents": "*.toml",
    "States of the agents": "*/agent.state",
    "Logs": "*.log",
}


# A closed terminal sends SIGHUP, which Windows does not have.
STOP_SIGNALS = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


@click.command(
    epilog=example("edgemerge demo --no-keep --out demo", "edgemerge demo --csv pump.csv")
)
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
@click.option(
    "--csv",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Only write two hours of readings of a pump to this file, the last ten minutes faulty.",
)
@click.option("--force", is_flag=True, help="With --csv: overwrite the file if it exists.")
@json_option
def demo(
    out: Path,
    data: str,
    seed: int,
    *,
    keep: bool | None,
    csv: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show five agents before and after merging once.

    Starts a server and five agents on this machine. Each agent learns one normal pattern, alone and
    sample by sample. Then all of them exchange once. Prints a table and the address of the
    dashboard, and writes a figure to the folder. With --csv it only writes a file to start with:
    `edgemerge init FILE` is the next step.
    """
    if csv is not None:
        from edgemerge.demo.data import write_readings

        check_writable(csv, force=force)
        write_readings(csv, seed)
        remark(f"Wrote {csv}. Next: edgemerge init {csv}")
        return
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
    from edgemerge.demo.data import har, pumps

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

    folder, token = fleet.folder, fleet.folder / "fleet.sqlite.admin-token"
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


STOPPED = "Stopped: these are the results so far."
INEXACT = "Not exact: a sum is wrong. This is a bug or a hardware fault; see the checks."
TIER_COLUMNS = headings(
    *("tier", "places", "messages", "kept", "late", "refused", "up", "down"),
    late="LATE OR REPEATED",
)


def number_option(
    name: str,
    kind: click.IntRange | click.FloatRange,
    default: float | None,
    words: str,
    *,
    old: str | None = None,
) -> Callable[[Any], Any]:
    """Return an option for a number; `old` is its former name."""
    return option(
        name,
        type=kind,
        default=default,
        show_default=default is not None,
        help=words,
        old={old: name} if old else None,
    )


COUNT = click.IntRange(min=1)
SHARE = click.FloatRange(0.0, 1.0)
ABOVE_ZERO = click.FloatRange(min=0.0, min_open=True)


@click.command(epilog=example("edgemerge simulate --devices 10000 --fan-out 100 --workers 2"))
@number_option("--devices", COUNT, 1_000_000, "Number of devices.")
@number_option("--fan-out", COUNT, 1000, "Devices per site.")
@number_option(
    "--regions", COUNT, None, "Number of regions.  [default: the square root of the sites]"
)
@number_option("--n-inputs", COUNT, 64, "Inputs of a sample.", old="--inputs")
@number_option("--n-hidden", COUNT, 32, "Hidden values.", old="--hidden")
@number_option("--grid-bits", click.IntRange(min=4), 12, "Grid steps of 2^-BITS.")
@number_option("--samples", COUNT, 8, "Samples per kind of sample of a device.")
@number_option("--seed", click.IntRange(min=0), 7, "Seed.")
@number_option("--drop-out", SHARE, 0.02, "Share of devices that are lost or truncated.")
@number_option("--repeat", SHARE, 0.05, "Share of devices that send the same message twice.")
@number_option("--revise", SHARE, 0.05, "Share of devices that send a newer revision later.")
@number_option("--late", SHARE, 0.04, "Share of messages that arrive late or out of order.")
@number_option("--check-every", COUNT, 100, "Validate every n-th device as a server does.")
@number_option("--interval-s", ABOVE_ZERO, 3600.0, "Seconds between two shares.", old="--interval")
@number_option("--latency-s", ABOVE_ZERO, 0.05, "Seconds per link.", old="--latency")
@number_option("--workers", COUNT, None, "Processes.  [default: one per core]")
@json_option
def simulate(
    interval_s: float, latency_s: float, workers: int | None, *, as_json: bool, **sizes: Any
) -> None:
    """Send the sums of a million devices through a tree.

    The sums of each device are encoded, decoded, put into its site's ledger and added up from site
    to region to the top, then compared with other ways to add them. The exit code is 1 if they are
    not equal to the last bit. Ctrl-C prints the results so far.
    """
    from edgemerge.daemon import stop_on_signals
    from edgemerge.scale import Plan, record
    from edgemerge.scale import simulate as run
    from edgemerge.scale.simulation import total_work
    from edgemerge.workers import available_cores

    plan = Plan(**sizes)
    count = workers or available_cores()
    remark(
        f"{plan.devices:,} devices in {plan.n_sites:,} sites and {plan.n_regions:,} regions; "
        f"{worker_count(count)}, at most {format_bytes(plan.memory(count))} for sums."
    )
    stop = Event()
    with stop_on_signals(stop) as received, progress("Adding up", total_work(plan)) as advance:
        outcome = run(plan, workers=count, advance=advance, stop=stop.is_set)
    print_record(record(outcome, interval_s=interval_s, latency_s=latency_s), as_json=as_json)
    if not outcome.exact:
        remark(INEXACT)
        raise SystemExit(ExitCode.FAILED)
    if outcome.stopped:
        remark(STOPPED)
        raise SystemExit(128 + received[0])


def print_record(found: dict[str, Any], *, as_json: bool) -> None:
    """Print the record, as JSON or text."""
    if as_json:
        print_json(found)
        return
    print_fields(summary_fields(found))
    click.echo()
    print_table(map(tier_row, found["tiers"]), TIER_COLUMNS)
    click.echo()
    if found["change"]:
        steps = [{**step, "ms": round(step["ms"], 2)} for step in found["change"]["steps"]]
        print_table(steps, {"words": "A CHANGE AT ONE DEVICE", "ms": "MS"})
        click.echo()
    for check in found["checks"]:
        click.echo(f"{'equal' if check['holds'] else 'NOT EQUAL'}: {check['words']}")


def summary_fields(found: dict[str, Any]) -> dict[str, str]:
    """Return the most important numbers as text."""
    s, speed, day, memory = (found[key] for key in ("sizes", "speed", "device_day", "memory"))
    return {
        "Tree": f"{s['devices']:,} devices, {s['sites']:,} sites, {s['regions']:,} regions, "
        "one top",
        "Sizes": f"{s['n_inputs']} inputs, {s['n_hidden']} hidden, grid of 2^-{s['grid_bits']}, "
        f"{s['message_bytes']:,} bytes a message",
        "Samples": f"{found['samples']:,.0f} in the total, {found['digest'][:16]}",
        "Contributions": f"{speed['contributions_per_s']:,.0f} a second with "
        f"{worker_count(speed['workers'])}, in {speed['seconds']:.1f} s; "
        f"{1e6 * speed['cpu_s_per_contribution']:.0f} µs of CPU each, from making to sum",
        "Sums": f"{speed['sums_per_s']:,.0f} a second by one thread: "
        f"{1e-9 * speed['sums_bytes_per_s']:.2f} GB/s, {100 * speed['share_of_memory']:.0f} % of "
        f"memory's {1e-9 * speed['memory_bytes_per_s']:.2f} GB/s",
        "Memory": f"{1e-6 * memory['peak_bytes']:,.0f} MB at most while gathering, all processes; "
        f"{1e-6 * memory['stats_bytes']:,.0f} MB of it for sums, by the formula",
        "A device's day": ", ".join(f"{form} {format_bytes(n)}" for form, n in day["bytes"].items())
        + f", both ways, one share each {day['interval_s']:g} s",
        **({"A change": change_summary(found["change"])} if found["change"] else {}),
    }


def worker_count(workers: int) -> str:
    """Return the number of workers in words."""
    return f"{workers} worker" + ("" if workers == 1 else "s")


def change_summary(change: dict[str, Any]) -> str:
    """Return how long a change takes to reach all devices."""
    return (
        f"reaches all in {change['reaches_all_s']:.2f} s: {change['work_s']:.2f} s of work and 6 "
        f"links of {change['latency_s']:g} s, if devices ask at once"
    )


def tier_row(tier: dict[str, Any]) -> dict[str, Any]:
    """Return the row of one tier."""
    up = tier["up"]
    words = {"tier": tier["tier"], "places": tier["places"], "late": up["late_or_repeated"]}
    counts = {name: up[name] for name in ("messages", "kept", "refused")}
    down = format_bytes(tier["down"]["bytes"]) if "down" in tier else None
    return {**words, **counts, "up": format_bytes(up["bytes"]), "down": down}


def format_bytes(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000.0:
            return f"{count:.3g} {unit}"
        count /= 1000.0
    return f"{count:,.3g} TB"
