"""`edgemerge simulate`: a million devices through a tree of exact sums, on this machine."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import click

from edgemerge.cli.output import (
    json_option,
    print_fields,
    print_json,
    print_table,
    progress,
    remark,
)

STOPPED = "Stopped: this is what is known so far."
INEXACT = "Not exact: a sum is wrong. This is a bug, or a fault of the machine; see the checks."
TIER_COLUMNS = {
    "tier": "TIER",
    "places": "PLACES",
    "messages": "MESSAGES",
    "kept": "KEPT",
    "late": "LATE OR REPEATED",
    "refused": "REFUSED",
    "up": "UP",
    "down": "DOWN",
}


def int_option(
    name: str, default: int | None, words: str, *, least: int = 1
) -> Callable[[Any], Any]:
    """Make an option for a whole number."""
    return click.option(
        name,
        type=click.IntRange(min=least),
        default=default,
        show_default=default is not None,
        help=words,
    )


def fraction_option(name: str, default: float, words: str) -> Callable[[Any], Any]:
    """Make an option for a share of the devices."""
    return click.option(
        name, type=click.FloatRange(0.0, 1.0), default=default, show_default=True, help=words
    )


def positive_option(name: str, default: float, words: str) -> Callable[[Any], Any]:
    """Make an option for a number above 0."""
    above = click.FloatRange(min=0.0, min_open=True)
    return click.option(name, type=above, default=default, show_default=True, help=words)


@click.command()
@int_option("--devices", 1_000_000, "Devices.")
@int_option("--fan-out", 1000, "Devices that tell one site.")
@int_option("--regions", None, "Regions that sites tell.  [default: the square root of the sites]")
@int_option("--inputs", 64, "Inputs of a sample.")
@int_option("--hidden", 32, "Hidden values.")
@int_option("--grid-bits", 12, "Digits of the grid: fewer hold more samples.", least=4)
@int_option("--samples", 8, "Samples of each of a device's few kinds.")
@int_option("--seed", 7, "Seed of everything.", least=0)
@fraction_option("--drop-out", 0.02, "Share of devices that are lost, or cut short.")
@fraction_option("--repeat", 0.05, "Share that say the same twice.")
@fraction_option("--revise", 0.05, "Share that send a newer revision later.")
@fraction_option("--late", 0.04, "Share that come late, or are overtaken by their next.")
@int_option("--check-every", 100, "Check every so many-th device as a server does.")
@positive_option("--interval", 3600.0, "Seconds between two shares, for bytes in a day.")
@positive_option("--latency", 0.05, "Seconds that a message is on a link.")
@int_option("--workers", None, "Processes.  [default: one to a core]")
@json_option
def simulate(
    interval: float, latency: float, workers: int | None, *, as_json: bool, **sizes: Any
) -> None:
    """Send a million devices' sums through a tree.

    Each device has sums of its own, which are encoded, decoded, put into its site's ledger, added
    up from site to region to the top, and held against other ways to add them up. Exit code 1 says
    that they were not equal to the last bit. Ctrl-C ends it with what is known so far.
    """
    from edgemerge.scale import Plan, record
    from edgemerge.scale import simulate as run
    from edgemerge.scale.simulation import total_work
    from edgemerge.workers import available_cores

    plan = Plan(n_inputs=sizes.pop("inputs"), n_hidden=sizes.pop("hidden"), **sizes)
    crew = workers or available_cores()
    remark(
        f"{plan.devices:,} devices in {plan.n_sites:,} sites and {plan.n_regions:,} regions; "
        f"{worker_count(crew)}, {format_bytes(plan.memory(crew))} for sums at most."
    )
    with stop_event() as stop, progress("Adding up", total_work(plan)) as advance:
        outcome = run(plan, workers=crew, advance=advance, stop=stop.is_set)
    print_record(record(outcome, interval_s=interval, latency_s=latency), as_json=as_json)
    if not outcome.exact:
        remark(INEXACT)
        raise SystemExit(1)
    if outcome.stopped:
        remark(STOPPED)
        raise SystemExit(128 + signal.SIGINT)


@contextmanager
def stop_event() -> Iterator[Event]:
    """Let a first Ctrl-C or SIGTERM end the work in order; a second one ends it at once."""
    from edgemerge.daemon import stop_on_signals

    stop, numbers = Event(), (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    stop_on_signals(stop)
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def print_record(found: dict[str, Any], *, as_json: bool) -> None:
    """Print the record, for machines or for people."""
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
    """Put the most important numbers into words."""
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
    """Say how many workers there are."""
    return f"{workers} worker" + ("" if workers == 1 else "s")


def change_summary(change: dict[str, Any]) -> str:
    """Say how long a change takes to reach all devices."""
    return (
        f"reaches all in {change['reaches_all_s']:.2f} s: {change['work_s']:.2f} s of work and 6 "
        f"links of {change['latency_s']:g} s, if devices ask at once"
    )


def tier_row(tier: dict[str, Any]) -> dict[str, Any]:
    """Write down one tier."""
    up = tier["up"]
    words = {"tier": tier["tier"], "places": tier["places"], "late": up["late_or_repeated"]}
    counts = {name: up[name] for name in ("messages", "kept", "refused")}
    down = format_bytes(tier["down"]["bytes"]) if "down" in tier else None
    return {**words, **counts, "up": format_bytes(up["bytes"]), "down": down}


def format_bytes(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000.0:
            return f"{count:.3g} {unit}"
        count /= 1000.0
    return f"{count:,.3g} TB"
