"""`edgemerge init`: look at a file of readings and write an agent's configuration for it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from edgemerge.cli.group import CommandError, ExitCode, example, needs
from edgemerge.cli.options import (
    FILE,
    allows_plain_http,
    ca_option,
    check_device_name,
    insecure_option,
    read_own_token,
    server_connection,
)
from edgemerge.cli.output import (
    headings,
    json_option,
    print_json,
    print_table,
    remark,
    remark_first_total,
)
from edgemerge.cli.samples import split_commas

if TYPE_CHECKING:
    from edgemerge.agent.proposal import ColumnReport, FileReport, Member, Proposal

BARS = "▁▂▃▄▅▆▇█"
PLOT_WIDTH = 32
COLUMNS = headings("column", "name", "holds", "lowest", "median", "highest", "missing", "values")
STDIN = Path("-")
PARQUET_SUFFIXES = (".parquet", ".pq")
SHOWN_DEVICES = 6


@click.command(
    epilog=example(
        "edgemerge init pump.csv",
        "edgemerge init pump.csv --columns pressure,flow --device pump-3 --yes",
        "edgemerge init hall/ --devices each",
    )
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--columns", metavar="A,B,...", callback=split_commas,
    help="Columns to watch, by name or by number from 1. Default: all numbers that change.",
)  # fmt: skip
@click.option("--device", help="The name of the device. Default: the name of the file.")
@click.option(
    "--devices", type=click.Choice(["each", "one"]),
    help="Each file of a folder is a device, or all are of one. Default: by their times.",
)  # fmt: skip
@click.option(
    "--device-column", metavar="COLUMN",
    help="The column that names the device of a row; \"\" for none. Default: by its name.",
)  # fmt: skip
@click.option(
    "--features", type=click.Choice(["raw", "window", "spectrum"]),
    help="What samples are made of. Default: by the rate of the readings.",
)  # fmt: skip
@click.option("--n-hidden", type=click.IntRange(1), help="Hidden values. Default: by the samples.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the projection.")
@click.option("--time-zone", metavar="ZONE", help="Zone of times that name none. Default: UTC.")
@click.option("--follow", is_flag=True, help="The file grows: go on with what is added to it.")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="CONFIG.toml",
    help="The configuration to write. Default: DEVICE.toml in this folder.",
)  # fmt: skip
@click.option(
    "--fleet",
    help="Join this fleet: create it if it is new, enrol, and write [exchange]. Needs --server.",
)
@click.option(
    "--server", metavar="URL", envvar="EDGEMERGE_SERVER", show_envvar=True,
    help="Address of the server, for --fleet.",
)  # fmt: skip
@click.option(
    "--token-file", type=FILE, envvar="EDGEMERGE_TOKEN_FILE", show_envvar=True,
    help="File with the token of your account, for --fleet; a new fleet needs an admin's.",
)  # fmt: skip
@ca_option
@insecure_option
@click.option("--yes", is_flag=True, help="Ask nothing; replace files that exist.")
@json_option
def init(
    file: Path,
    columns: list[str],
    output: Path | None,
    *,
    device: str | None,
    devices: Literal["each", "one"] | None,
    device_column: str | None,
    fleet: str | None,
    server: str | None,
    token_file: Path | None,
    ca_file: Path | None,
    yes: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Write an agent's configuration for a file of readings.

    Looks at the beginning of FILE (CSV, JSON lines or Parquet; a folder of such files; or - for
    standard input): delimiter, decimal mark, header, times, rate and columns. Proposes features and
    ranges, and writes CONFIG.toml and the projection beside it. Parquet becomes a CSV file, which
    the agent reads. Several devices in a folder or a file share one CONFIG.toml. With --fleet the
    devices join a fleet at once, and the agent shows them on its page.
    """
    from edgemerge.agent.proposal import EmptyTableError, choose_columns, propose, to_toml
    from edgemerge.files import check_folder, save, write_atomically

    access = None if fleet is None else _fleet_access(fleet, server, token_file, ca_file)
    asks = _is_terminal() and not yes and not as_json
    try:
        found = _look(file, follow=choices["follow"])
    except EmptyTableError as error:
        raise CommandError(str(error), ExitCode.NO_DATA) from error
    chosen = choose_columns(found.report, columns)
    _check_options(found, devices, device_column)
    if asks:
        _print_report(found)
    found = _with_files(found, devices, asks=asks)
    found = _with_device_column(found, device_column, asks=asks)
    name = device or found.name
    if asks and device is None and (found.of_one or not found.members):
        name = click.prompt("Name of the device", default=name, err=True)
    check_device_name(name)
    target = output or Path(f"{name}.toml")
    check_folder(target)
    plan = _plan_files(found, name, target)
    names = [] if access is None else plan.device_names(name, of_one=found.of_one)
    tokens = {each: target.with_name(f"{each}.token") for each in names}
    _confirm_replacing([target, *plan.new_files, *tokens.values()], yes=yes)
    proposal = propose(
        plan.path, found.report, chosen, device=name, members=plan.members,
        of_one=found.of_one, device_column=found.device_column, **choices,
    )  # fmt: skip
    if access is not None:
        proposal = access.join(proposal, tokens)
    if not asks and not as_json:
        _print_report(found)
    plan.convert()
    save(proposal.projection, plan.projection)
    write_atomically(to_toml(proposal, Path(plan.projection.name)).encode(), target)
    if as_json:
        print_json(_plain(found, proposal, target, plan))
    else:
        _print_proposal(found, proposal, target, plan)


@dataclass(frozen=True)
class Found:
    """What was given: a file, a folder or standard input, and what was found in it.

    `members` are its devices, or the files of one device; the report is that of the newest file.
    """

    place: Path
    report: FileReport
    name: str
    form: str
    is_folder: bool = False
    follow: bool = False
    members: tuple[Member, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    device_column: str | None = None
    of_one: bool = False  # the files are of one device


def _look(place: Path, *, follow: bool) -> Found:
    from edgemerge.agent.proposal import device_names, inspect_bytes, inspect_folder

    if place == STDIN:
        data, whole = _read_stdin()
        report = inspect_bytes(data, whole=whole)
        return Found(place, report, "device", _form(report, place), follow=follow)
    if place.is_dir():
        members, left_out = inspect_folder(place, _inspect)
        newest = max(members, key=lambda member: member.path.stat().st_mtime if member.path else 0)
        name = device_names([place.absolute().name])[0]
        form = _form(newest.report, newest.path or place)
        return Found(
            place, newest.report, name, form, True, follow, tuple(members), left_out  # noqa: FBT003
        )  # fmt: skip
    if str(place).startswith(("opc.tcp:", "modbus:")):
        raise CommandError(
            f"{place} is not a file: for OPC UA and Modbus, write [source] by hand, with kind = "
            '"opcua" or "modbus"; `edgemerge doctor CONFIG.toml` then reads a row'
        )
    if not place.exists():
        raise CommandError(
            f"{place} is not a file: give the path of a CSV, JSON lines or Parquet file, of a "
            "folder of them, or - for standard input",
            ExitCode.NO_DATA,
        )
    report = _inspect(place)
    return Found(place, report, device_names([place.stem])[0], _form(report, place), follow=follow)


def _read_stdin() -> tuple[bytes, bool]:
    """Return the beginning of standard input, and whether that is all of it."""
    from edgemerge.agent.proposal import MAX_BYTES

    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    return data[:MAX_BYTES], len(data) <= MAX_BYTES


def _inspect(path: Path, max_bytes: int | None = None) -> FileReport:
    """Return what is found in a file; Parquet is looked at as the CSV file that it becomes."""
    from edgemerge.agent.proposal import MAX_ROWS, inspect_bytes, inspect_file
    from edgemerge.core.errors import SampleError

    try:
        if not _is_parquet(path):
            return inspect_file(path, max_bytes)
        data, whole = _csv_bytes(path, MAX_ROWS)
        return replace(inspect_bytes(data), whole=whole)
    except SampleError as error:
        raise type(error)(f"{path}: {error}") from error


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in PARQUET_SUFFIXES


def _csv_bytes(path: Path, most: int) -> tuple[bytes, bool]:
    """Return the first rows of a Parquet file as CSV, and whether these are all of them."""
    from io import BytesIO

    parquet = needs("parquet", "edgemerge.bulk.parquet_file")
    written = BytesIO()
    rows, of = parquet.write_csv(str(path), written, most)
    return written.getvalue(), rows == of


def _check_options(found: Found, devices: str | None, device_column: str | None) -> None:
    """Refuse options that do not fit what was found, before anything is printed or asked."""
    from edgemerge.agent.proposal import choose_columns

    if devices is not None and not found.is_folder:
        raise CommandError(f"--devices {devices} is for a folder, and {found.place} is none")
    if not device_column:
        return
    if found.is_folder:
        raise CommandError("--device-column is for one file, and this is a folder")
    if found.place == STDIN:
        raise CommandError(
            "several devices cannot share standard input: write it to a file, and follow that one"
        )
    choose_columns(found.report, [device_column])


@dataclass(frozen=True)
class FleetAccess:
    """A fleet on a server, and the operator's token."""

    fleet: str
    server: str
    token: str
    ca_file: Path | None

    def join(self, proposal: Proposal, token_files: Mapping[str, Path]) -> Proposal:
        """Create the fleet if it is new, enrol the devices, and return what they need to join.

        A fleet that exists has a projection, which must be for the same inputs; it is taken.
        """
        from edgemerge.agent.config import ExchangeConfig
        from edgemerge.core.errors import UnknownError
        from edgemerge.files import write_atomically

        with server_connection(self.server, self.token, self.ca_file) as operator:
            try:
                shared = operator.projection(self.fleet)
            except UnknownError:
                operator.create_fleet(self.fleet, proposal.projection)
                remark_first_total(operator.fleet(self.fleet))
                shared = proposal.projection
            _check_same_inputs(self.fleet, shared, proposal.projection)
            invitations = {each: operator.invite(self.fleet, each)["token"] for each in token_files}
        for device, invitation in invitations.items():
            with server_connection(self.server, invitation, self.ca_file) as client:
                token = client.enrol(self.fleet, device)["token"]
            write_atomically(f"{token}\n".encode(), token_files[device])
        name = "{device}" if proposal.members else proposal.config.device
        exchange = ExchangeConfig(
            kind="http",
            url=self.server,
            fleet=self.fleet,
            token_file=Path(f"{name}.token"),
            ca_file=None if self.ca_file is None else self.ca_file.absolute(),
            insecure=allows_plain_http(),
        )
        config = replace(proposal.config, exchange=exchange)
        return replace(proposal, config=config, projection=shared)


def _fleet_access(
    fleet: str, server: str | None, token_file: Path | None, ca_file: Path | None
) -> FleetAccess:
    if server is None or token_file is None:
        raise CommandError(
            "--fleet needs --server and --token-file, an operator's token: `edgemerge serve` "
            "starts a server and writes an admin's"
        )
    return FleetAccess(fleet, server, read_own_token(token_file), ca_file)


def _check_same_inputs(fleet: str, shared: Any, proposed: Any) -> None:
    if (shared.n_inputs, shared.names) != (proposed.n_inputs, proposed.names):
        names = [
            ", ".join(each.names or [f"{each.n_inputs} inputs"]) for each in (shared, proposed)
        ]
        raise CommandError(
            f"the fleet {fleet} has the inputs {names[0]}, and this file gives {names[1]}: choose "
            "--columns and --features as for its other devices, or another --fleet",
            ExitCode.REFUSED,
        )


def _with_files(found: Found, devices: Literal["each", "one"] | None, *, asks: bool) -> Found:
    """Decide whether the files of a folder are of one device, or each of its own."""
    from edgemerge.agent.proposal import of_one_device

    if not found.is_folder:
        return found
    if devices is None:
        devices = "one" if of_one_device(found.members) else "each"
        if asks and len(found.members) > 1:
            words = f"Is each of the {len(found.members)} files a device? No: all are of one."
            each = click.confirm(words, default=devices == "each", err=True)
            devices = "each" if each else "one"
    return replace(found, of_one=devices != "each")


def _with_device_column(found: Found, column: str | None, *, asks: bool) -> Found:
    """Find the column that names the device of each row, and split the rows by it."""
    from edgemerge.agent.proposal import find_device_column, split_by_device

    if found.is_folder or found.place == STDIN:
        return found
    chosen = find_device_column(found.report) if column is None else column or None
    if chosen is None:
        return found
    members = tuple(split_by_device(found.report, chosen))
    words = f"Is each of the {len(members)} values of {chosen} a device?"
    if asks and column is None and not click.confirm(words, default=True, err=True):
        return found
    return replace(found, members=members, device_column=chosen)


@dataclass(frozen=True)
class FilePlan:
    """Where things go: the source's path, and Parquet files that become CSV files."""

    projection: Path
    path: Path | None
    members: tuple[Member, ...] = ()
    conversions: tuple[tuple[Path, Path], ...] = ()

    @property
    def new_files(self) -> list[Path]:
        """The files that are written beside the configuration."""
        return [self.projection, *dict.fromkeys(csv for _, csv in self.conversions)]

    def device_names(self, name: str, *, of_one: bool) -> list[str]:
        """Return the names of all devices; `name` is that of a single one."""
        return [m.device for m in self.members] if self.members and not of_one else [name]

    def convert(self) -> None:
        """Write the CSV files; those of one device one after the other into one."""
        begun = set()
        for path, csv in self.conversions:
            parquet = needs("parquet", "edgemerge.bulk.parquet_file")
            with csv.open("ab" if csv in begun else "wb") as file:
                parquet.write_csv(str(path), file, header=csv not in begun)
            begun.add(csv)


def _plan_files(found: Found, name: str, target: Path) -> FilePlan:
    projection = target.with_suffix(".projection")
    if found.place == STDIN:
        return FilePlan(projection, None)
    if not found.is_folder:
        source = found.place.absolute()
        if not _is_parquet(found.place):
            return FilePlan(projection, source, found.members)
        csv = target.with_name(f"{name}.csv")
        return FilePlan(projection, csv.absolute(), found.members, ((source, csv),))
    paths = [member.path for member in found.members if member.path is not None]
    parquet = any(map(_is_parquet, paths))
    if found.of_one:
        csv = target.with_name(f"{name}.csv")
        if parquet:
            conversions = tuple((path, csv) for path in paths)
            return FilePlan(projection, csv.absolute(), found.members, conversions)
        newest = max(paths, key=lambda path: path.stat().st_mtime)
        return FilePlan(projection, newest.absolute() if found.follow else None, found.members)
    csvs = [target.with_name(f"{m.device}.csv") if parquet else m.path for m in found.members]
    members = tuple(
        replace(member, path=None if csv is None else csv.absolute())
        for member, csv in zip(found.members, csvs, strict=True)
    )
    pairs = zip(paths, (csv for csv in csvs if csv is not None), strict=True)
    return FilePlan(projection, found.place.absolute(), members, tuple(pairs) if parquet else ())


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _confirm_replacing(paths: list[Path], *, yes: bool) -> None:
    there = [path for path in paths if path.exists()]
    if there and not yes:
        if not _is_terminal():
            raise CommandError(f"{there[0]} exists: add --yes to replace it, or choose --output")
        click.confirm(f"Replace {' and '.join(map(str, there))}?", abort=True, err=True)


def _form(report: FileReport, path: Path) -> str:
    if _is_parquet(path):
        return "Parquet"
    names = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
    form = "JSON lines" if report.format == "jsonl" else f"CSV with {names[report.delimiter]}"
    return f"{form}, decimal commas" if report.decimal == "," else form


def _print_report(found: Found) -> None:
    report, place = found.report, found.place
    name = "standard input" if place == STDIN else str(place)
    rows = f"{report.rows:,} rows" if report.whole else f"its first {report.rows:,} rows"
    rate = "" if report.rate_hz is None else f", one every {_interval(1.0 / report.rate_hz)}"
    if found.is_folder:
        newest = f"the newest has {rows}" if len(found.members) > 1 else rows
        click.echo(f"{name}: {len(found.members)} files, {found.form}; {newest}{rate}\n")
    else:
        click.echo(f"{name}: {found.form}, {rows}{rate}\n")
    print_table([_column_row(column) for column in report.columns], COLUMNS)
    click.echo()
    for path, why in found.left_out.items():
        remark(f"note: {path} is left out: {why}")


def _column_row(column: ColumnReport) -> dict[str, Any]:
    import numpy as np

    found = {"column": column.number, "name": column.name, "holds": column.problem or column.kind}
    if column.kind != "number":
        return found | dict.fromkeys(("lowest", "median", "highest", "missing", "values"), "")
    values = column.values[np.isfinite(column.values)]
    low, middle, high = (f"{each:.4g}" for each in np.quantile(values, [0.0, 0.5, 1.0]))
    found |= {"lowest": low, "median": middle, "highest": high, "missing": column.missing}
    return found | {"values": plot(values.tolist())}


def plot(values: list[float]) -> str:
    """Return a line of bars: the mean of each part of the values, between lowest and highest.

    >>> plot([0.0, 1.0, 2.0, 3.0])
    '▁▃▆█'
    """
    width = min(PLOT_WIDTH, len(values))
    edges = [len(values) * i // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def _interval(seconds: float) -> str:
    if seconds < 1.0:
        return f"{1000.0 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120.0 else f"{seconds / 60.0:.3g} min"


def _feature_words(proposal: Proposal) -> str:
    features = proposal.config.features
    if features.kind == "raw":
        return "each row as it is"
    if features.kind == "window":
        return f"{', '.join(features.statistics)} of {features.length} rows"
    return f"spectrum of {features.length} rows in {features.bands} bands"


def _print_proposal(found: Found, proposal: Proposal, target: Path, plan: FilePlan) -> None:
    shared = proposal.projection
    if proposal.members:
        names = [member.device for member in proposal.members]
        shown = ", ".join(names) if len(names) <= SHOWN_DEVICES else f"{names[0]} … {names[-1]}"
        click.echo(f"devices    {len(names)}: {shown}")
    click.echo(f"samples    {_feature_words(proposal)}: {proposal.samples:,} of them")
    click.echo(f"network    {shared.n_inputs} inputs, {shared.n_hidden} hidden values")
    click.echo(f"watching   begins after {proposal.commissioning:,} samples")
    click.echo(f"written    {', '.join(map(str, [target, *plan.new_files]))}")
    exchange = proposal.config.exchange
    if exchange.kind != "none":
        click.echo(f"fleet      {exchange.fleet} on {exchange.url}, token in {exchange.token_file}")
    for words in proposal.remarks:
        remark(f"note: {words}")
    click.echo(f"\nnext: {_next_command(found, target, plan)}")


def _next_command(found: Found, target: Path, plan: FilePlan) -> str:
    """Return the command that runs the agent; what it reads from standard input comes first."""
    run = f"edgemerge agent {shlex.quote(str(target))}"
    if found.place == STDIN:
        return f"... | {run}"
    if plan.path is None:
        files = " ".join(shlex.quote(str(m.path)) for m in found.members)
        suffixes = {member.path.suffix for member in found.members if member.path is not None}
        if len(suffixes) == 1 and not found.left_out:
            files = f"{shlex.quote(str(found.place))}/*{suffixes.pop()}"
        return f"cat {files} | {run}"
    return run


def _plain(found: Found, proposal: Proposal, target: Path, plan: FilePlan) -> dict[str, Any]:
    report = found.report
    names = (
        "format", "rows", "skipped", "encoding", "delimiter", "decimal", "header", "skip_lines",
        "time", "time_format", "rate_hz", "gaps", "backward",
    )  # fmt: skip
    columns = [
        {"number": c.number, "name": c.name, "holds": c.problem or c.kind, "missing": c.missing}
        for c in report.columns
    ]
    shared = proposal.projection
    return {name: getattr(report, name) for name in names} | {
        "columns": columns,
        "features": proposal.config.features.kind,
        "samples": proposal.samples,
        "n_inputs": shared.n_inputs,
        "n_hidden": shared.n_hidden,
        "commissioning": proposal.commissioning,
        "remarks": list(proposal.remarks),
        "devices": [member.device for member in proposal.members],
        "left_out": found.left_out,
        "config": str(target),
        "projection": str(plan.projection),
        "next": _next_command(found, target, plan),
    }
