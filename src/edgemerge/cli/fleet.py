"""Commands of the operator: fleets, devices, choices, trust, reviews, receivers, audit log."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING, Any

import click

from edgemerge.cli.agent import (
    PATTERN_DECISIONS,
    hours_option,
    print_monitor,
    snooze_time,
)
from edgemerge.cli.group import CommandError, ExitCode, LazyGroup, example, option, options
from edgemerge.cli.options import (
    FILE,
    build_projection,
    check_device_name,
    check_writable,
    force_option,
    operator_connection,
    operator_options,
    projection_options,
    server_options,
)
from edgemerge.cli.output import (
    confirm,
    format_time,
    headings,
    print_fields,
    print_json,
    print_json_line,
    print_table,
    remark,
    remark_first_total,
)
from edgemerge.cli.samples import columns_option
from edgemerge.core.errors import RejectedError, SettingError, UnavailableError

if TYPE_CHECKING:
    from edgemerge.core.projection import Projection

SECTIONS = {
    "Fleets": dict.fromkeys(("create", "list", "show", "delete"), __name__)
    | {"list": f"{__name__}:list_fleets"},
    "Devices": dict.fromkeys(
        ("invite", "devices", "configure", "replace", "revoke", "contributions", "drop"), __name__
    ),
    "Masked": {
        "cohorts": __name__,
        "form-cohorts": f"{__name__}:form_cohorts",
        "drop-cohort": f"{__name__}:drop_cohort",
        "suspects": __name__,
        "forget-keys": f"{__name__}:forget_keys",
    },
    "Choices": dict.fromkeys(("choices", "adopt", "exclude", "undo", "preview"), __name__),
    "Trust": dict.fromkeys(("trust", "waiting", "approve", "dismiss"), __name__),
    "Reviews": dict.fromkeys(("episodes", "monitor", "review", "reviews", "settings"), __name__),
    "Messages": {"receivers": __name__},
    "Server": {"audit": __name__},
}
NOISE_OPTIONS = ("epsilon", "delta", "radius", "release", "centred_on")
MASKED_LOSES = (
    "The server of a masked fleet cannot drop or choose devices, group patterns, validate what one "
    "device sent, or ask for a quorum; faults are not shared, and what a device added before it "
    "lost its state stays in the total."
)
MASKED_NEXT = (
    "A total hides its samples from {enough} devices on that share by the default gate; fewer need "
    "--min-devices. Next: devices register their keys at their first exchange, then `edgemerge "
    "fleet form-cohorts`."
)
NOISED_LOSES = (
    "Devices add noise before anything leaves them: with ε = {epsilon:g} and δ = {delta:g} it can "
    "hardly be told whether a given sample is in a total; many samples of one device or person "
    "together can. About {enough} samples in a total outweigh its noise. Each sample is sent once: "
    "what was learnt in commissioning, or approved, is not sent; nothing can be taken back, and "
    "what was in an epoch that failed is not sent again. Devices need the extra 'privacy'. Next: "
    "they register their keys at their first exchange, then `edgemerge fleet form-cohorts`."
)
FEW_DEVICES_WARNING = (
    "A total of {least} devices can reveal whether a given sample is in it, to whoever has similar "
    "ones; from {enough} devices on it hardly does."
)
FEW_MISSING_WARNING = (
    "Cohort {cohort}: an epoch waits until {least} of its {devices} devices have sent; with half "
    "as many again as --min-devices a third may be missing."
)
COHORT_COLUMNS = headings(
    "cohort", "devices", "least", "keepers", "threshold", "epoch", "state", "samples", "distance"
)
ENDED_COLUMNS = COHORT_COLUMNS | headings("formed", "ended", "dropped")
ONE_DEVICE_WARNING = (
    "With --min-devices 1 a device can subtract two totals, and read what another one sent."
)
FLEET_COLUMNS = headings("fleet", "devices", "contributions", "samples", "reads", "created")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
comment_option = click.option("--comment", default="", help="One line for those who read the log.")
undo_option = click.option(
    "--undo", type=click.IntRange(min=1), metavar="VERSION", help="Take this one back."
)


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    old={"withhold": "exclude", "alarms": "episodes", "notify": "receivers"},
    epilog=example(
        "export EDGEMERGE_SERVER=https://hub:8470 EDGEMERGE_TOKEN_FILE=admin.token",
        "edgemerge fleet list",
    ),
)
def fleet() -> None:
    """Create fleets and manage their devices.

    For people with an account on a server. Every command needs --server and --token-file, or the
    variables EDGEMERGE_SERVER and EDGEMERGE_TOKEN_FILE.
    """


@click.command(epilog=example("edgemerge fleet create pumps --range-from monday.csv --n-hidden 64"))
@click.argument("name", metavar="FLEET")
@projection_options
@columns_option
@click.option(
    "--reads",
    type=click.Choice(["totals", "contributions", "masked"]),
    default="totals",
    show_default=True,
    help="What devices may read: sums of several devices, or single contributions. In a masked "
    "fleet the server sees sums only, too.",
)
@option(
    "--min-devices",
    "least",
    old={"--least": "--min-devices"},
    type=click.IntRange(1, 10_000),
    help="Serve no sum, and no difference of two sums, of fewer devices: 3 with --reads totals"
    " (default); 1: every change at once.",
)
@option(
    "--no-forgetting",
    "growing",
    old={"--growing": "--no-forgetting"},
    is_flag=True,
    help="Reject contributions whose sums decreased.",
)
@click.option(
    "--trust",
    metavar="RULE",
    help="members (default), quorum:K or person: which contributions others adopt at once.",
)
@click.option(
    "--epsilon",
    type=click.FloatRange(0.01, 100.0),
    help="Masked: devices add noise; 1 is strong, 10 hardly protects.",
)
@click.option(
    "--delta",
    type=click.FloatRange(1e-15, 0.1),
    help="Masked: the chance that ε does not hold; below one over the number of samples.",
)
@click.option(
    "--radius",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    help="With noise: how far samples usually are from the middle of the range, in half-ranges; "
    "0.2 by default.",
)
@click.option(
    "--release",
    type=click.Choice(["sums", "mean"]),
    help="With noise: what is released; a mean costs a twentieth of the budget.",
)
@click.option(
    "--centred-on",
    metavar="FLEET",
    help="Take projection and noise of a fleet with --release mean, centred on its mean.",
)
@click.option(
    "--invite",
    metavar="DEVICE",
    help="Invite this device too: its invitation is written to DEVICE.invitation.",
)
@operator_options
def create(
    name: str,
    reads: str,
    least: int | None,
    trust: str | None,
    invite: str | None,
    server: str,
    token_file: Path,
    ca_file: Path | None,
    *,
    growing: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Create a fleet with the projection that its devices share.

    Give the projection as --projection FILE, --range-from SAMPLES.csv, or --n-inputs, --low and
    --high, or as --centred-on FLEET. It cannot be changed later; of the rest, `fleet trust`
    changes --trust.
    """
    if invite is not None:
        check_device_name(invite)
    if trust is not None:
        _check_trust(trust)
    noise = {key: settings.pop(key) for key in NOISE_OPTIONS}
    centred_on, columns = noise["centred_on"], settings.pop("columns")
    if centred_on and (columns or any(value is not None for value in settings.values())):
        raise CommandError(
            "found --centred-on together with settings of a projection, expected one of them"
        )
    projection = None if centred_on else build_projection(columns=columns, **settings)
    with operator_connection(server=server, token_file=token_file, ca_file=ca_file) as client:
        agreed = projection or client.projection(centred_on)
        options = {"reads": reads, "least": least, "growing": growing, "trust": trust}
        made = client.create_fleet(name, agreed, **options, **noise)
        found = with_dates(client.fleet(name))
        if invite is not None:
            invitation = client.invite(name, invite)
            found["invitation"] = _write_invitation(invitation, Path(f"{invite}.invitation"))
    print_fleet(found, as_json=as_json)
    remark(
        f"Created fleet {name}." if made else f"Fleet {name} already exists with these settings."
    )
    if made:
        remark_first_total(found)
    if reads == "masked":
        remark(_masked_words(agreed, found["noise"]))
    if least == 1 and reads == "totals":
        remark(ONE_DEVICE_WARNING)


def _masked_words(projection: Projection, noise: dict[str, Any] | None) -> str:
    """Return what a masked fleet gives up, and what its noise costs and protects."""
    from edgemerge.privacy.gate import min_cohort
    from edgemerge.privacy.noise import NoiseSettings

    if noise is None:
        return f"{MASKED_LOSES} {MASKED_NEXT.format(enough=min_cohort(projection))}"
    enough = NoiseSettings.parse(noise).enough_samples(projection)
    return f"{MASKED_LOSES} {NOISED_LOSES.format(**noise, enough=enough)}"


@click.command("list", epilog=example("edgemerge fleet list --json"))
@operator_options
def list_fleets(*, as_json: bool, **where: Any) -> None:
    """List all fleets."""
    with operator_connection(**where) as client:
        found = [with_dates(each) for each in client.fleets()]
    print_json(found) if as_json else print_table(found, FLEET_COLUMNS)


@click.command(epilog=example("edgemerge fleet show pumps --save-projection pumps.projection"))
@click.argument("name", metavar="FLEET")
@click.option(
    "--save-projection",
    type=FILE,
    help="Write the projection to this file.",
)
@force_option
@operator_options
def show(
    name: str, save_projection: Path | None, *, force: bool, as_json: bool, **where: Any
) -> None:
    """Show a fleet's settings and counts."""
    check_writable(save_projection, force=force)
    with operator_connection(**where) as client:
        found = with_dates(client.fleet(name))
        if save_projection:
            from edgemerge.files import save

            save(client.projection(name), save_projection)
    print_fleet(found, as_json=as_json)


# Names of the options that set them; over HTTP, and also in JSON, they keep their first names.
FLEET_NAMES = {
    "least": "min_devices",
    "growing": "no_forgetting",
    "inputs": "n_inputs",
    "hidden": "n_hidden",
}


def print_fleet(found: dict[str, Any], *, as_json: bool) -> None:
    """Print a fleet, its settings under the names of the options of `fleet create`."""
    named = {FLEET_NAMES.get(key, key): value for key, value in found.items()}
    if as_json:
        print_json(found | named)
    else:
        noise = found["noise"]
        print_fields(named | {"noise": _noise_words(noise) if noise else "none"})


@click.command(
    epilog=example("edgemerge fleet cohorts pumps", "edgemerge fleet cohorts pumps --all")
)
@click.argument("name", metavar="FLEET")
@click.option(
    "--all", "ended", is_flag=True, help="Also ended and dropped ones, of the last ten formings."
)
@operator_options
def cohorts(name: str, *, ended: bool, as_json: bool, **where: Any) -> None:
    """List the cohorts of a masked fleet, each with its epoch.

    The distance says how unlike the other cohorts its data are: 1 if they are alike, above 2.5 if
    they are not.
    """
    with operator_connection(**where) as client:
        found = client.cohorts(name, ended=ended)
    print_cohorts(found, as_json=as_json, columns=ENDED_COLUMNS if ended else COHORT_COLUMNS)


@click.command(
    "form-cohorts",
    epilog=example("edgemerge fleet form-cohorts pumps --min-devices 30 --collect-hours 6"),
)
@click.argument("name", metavar="FLEET")
@option(
    "--min-devices",
    "least",
    old={"--least": "--min-devices"},
    type=click.IntRange(3, 10_000),
    help="Open no total of fewer devices. Default: so many that a total hides its samples, which "
    "`fleet create` prints.",
)
@click.option(
    "--slot",
    "slots",
    multiple=True,
    help="A pattern that is added up by itself; repeat it. By default all are one sum.",
)
@click.option(
    "--size",
    type=click.IntRange(3, 10_000),
    default=100,
    show_default=True,
    help="The most devices of one cohort.",
)
@click.option(
    "--collect-hours",
    type=click.FloatRange(0.0, 720.0, min_open=True),
    default=1.0,
    show_default=True,
    help="How long an epoch waits for uploads, then for keepers to agree on whose are there, then "
    "for their answers.",
)
@click.option(
    "--colluding",
    type=click.FloatRange(0.0, 0.5, max_open=True),
    default=0.0,
    show_default=True,
    help="The share of the devices that may work together with the server.",
)
@click.option(
    "--mix",
    is_flag=True,
    help="Part devices that were in one cohort, to find the one behind a cohort that differs.",
)
@operator_options
def form_cohorts(
    name: str,
    least: int | None,
    slots: tuple[str, ...],
    size: int,
    collect_hours: float,
    colluding: float,
    *,
    mix: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Form cohorts of all devices that have registered keys.

    Cohorts before them end; what was added up stays in the total. Give each device the digest of
    its cohort as exchange.cohort in its configuration if the server is not trusted to name the
    members.
    """
    from edgemerge.privacy.gate import min_cohort

    chosen = {"least": least, "size": size, "collect_s": 3600.0 * collect_hours}
    named = {"slots": list(slots)} if slots else {}
    with operator_connection(**where) as client:
        enough = min_cohort(client.projection(name))
        found = client.form_cohorts(name, **chosen, colluding=colluding, mix=mix, **named)
    print_cohorts(found, as_json=as_json)
    if least is not None and least < enough and not any(each["noise"] for each in found):
        remark(FEW_DEVICES_WARNING.format(least=least, enough=enough))
    for each in found:
        devices = len(each["devices"])
        if 3 * each["least"] > 2 * devices + 2:
            remark(FEW_MISSING_WARNING.format(**each | {"devices": devices}))


@click.command("drop-cohort", epilog=example("edgemerge fleet drop-cohort pumps 3"))
@click.argument("name", metavar="FLEET")
@click.argument("cohort", type=int)
@yes_option
@server_options
def drop_cohort(name: str, cohort: int, *, yes: bool, **where: Any) -> None:
    """End a cohort, and take all that it has added up out of the total.

    For a cohort whose distance says that one of its devices adds up something else. Its devices
    send their sums again once cohorts are formed with them; in a fleet with noise they do not.
    """
    confirm(f"Drop all that cohort {cohort} of {name} has added up?", yes=yes)
    with operator_connection(**where) as client:
        client.drop_cohort(name, cohort)
    remark(f"Dropped cohort {cohort}. Then: edgemerge fleet form-cohorts {name}")


@click.command(epilog=example("edgemerge fleet suspects pumps"))
@click.argument("name", metavar="FLEET")
@operator_options
def suspects(name: str, *, as_json: bool, **where: Any) -> None:
    """List the devices that were most often in a cohort that differed.

    Form cohorts again with --mix until one device is left. Cohorts with a device that was revoked
    since do not count.
    """
    with operator_connection(**where) as client:
        found = client.suspects(name)
    if as_json:
        print_json(found)
        return
    for device in found["devices"]:
        click.echo(device)
    remark(
        f"In {found['times']} of the {found['formings']} times that cohorts were formed of which "
        "one differed."
        if found["devices"]
        else "No cohort differs from the others that were formed with it."
    )


@click.command("forget-keys", epilog=example("edgemerge fleet forget-keys pumps pump-3"))
@click.argument("name", metavar="FLEET")
@click.argument("device")
@server_options
def forget_keys(name: str, device: str, **where: Any) -> None:
    """Let a device of a masked fleet register new keys.

    For a device that was replaced or lost its state. It takes part again once cohorts are formed;
    what it had added up stays in the total.
    """
    with operator_connection(**where) as client:
        client.forget_keys(name, device)
    remark(f"{device} may register new keys. Then: edgemerge fleet form-cohorts {name}")


def print_cohorts(
    found: list[dict[str, Any]], *, as_json: bool, columns: Mapping[str, str] = COHORT_COLUMNS
) -> None:
    """Print cohorts as JSON, or as a table with the digest of each below it."""
    found = [with_dates(each) for each in found]
    if as_json:
        print_json(found)
        return
    rows = [
        each | {"devices": len(each["devices"]), "distance": _distance_words(each)}
        for each in found
    ]
    print_table(rows, columns)
    for each in (each for each in found if not each["ended"]):
        if each["noise"]:
            words = "Cohort {cohort}: each device adds 1/{noisy} of the variance of {noise}."
            remark(words.format(**each | {"noise": _noise_words(each["noise"])}))
        remark(f"Cohort {each['cohort']} has the digest {each['digest']}.")
        if each["why"]:
            remark(f"Cohort {each['cohort']}: {each['why']}.")


def _noise_words(noise: dict[str, Any]) -> str:
    from edgemerge.privacy.noise import NoiseSettings

    return str(NoiseSettings.parse(noise))


def _distance_words(cohort: Mapping[str, Any]) -> float | str | None:
    if cohort.get("impossible"):
        return "impossible"
    return None if cohort["distance"] is None else round(cohort["distance"], 2)


@click.command(epilog=example("edgemerge fleet delete pumps --yes"))
@click.argument("name", metavar="FLEET")
@yes_option
@operator_options
def delete(name: str, *, yes: bool, as_json: bool, **where: Any) -> None:
    """Delete a fleet with its devices and contributions.

    This cannot be undone.
    """
    confirm(f"Delete fleet {name} with everything in it?", yes=yes)
    with operator_connection(**where) as client:
        client.delete_fleet(name)
    print_json({"deleted": name}) if as_json else click.echo(f"Deleted fleet {name}.")


def with_dates(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply with its times as text."""
    times = {"created", "expires", "enrolled", "revoked", "seen", "received", "at", "undone"}
    times |= {"since", "began", "ended", "acknowledged", "commented", "reported", "changed"}
    times |= {"issued", "formed", "dropped"}
    return {key: format_time(value) if key in times else value for key, value in found.items()}


DEVICE_COLUMNS = headings(
    "device", "contributions", "samples", "seen", "revoked", seen="LAST SHARE"
)
CONTRIBUTION_COLUMNS = headings(
    "device", "incarnation", "pattern", "revision", "samples", "bytes", "received"
)


valid_option = click.option(
    "--valid-s", type=int, default=86400, show_default=True, help="Seconds until it expires."
)
token_out_options = options(
    click.option(
        "--out", type=FILE, help="Write the token to this file instead, readable by its owner only."
    ),
    force_option,
)


@click.command(
    epilog=example(
        "edgemerge fleet invite pumps pump-3 --out invitation",
        "edgemerge fleet invite pumps --from devices.csv --out invitations/",
    )
)
@click.argument("fleet")
@click.argument("device", required=False)
@click.option(
    "--from",
    "list_file",
    type=FILE,
    metavar="DEVICES.csv",
    help="Invite each device of this file: a column `device`, and `label` if you like.",
)
@valid_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the token to this file instead, readable by its owner only; with --from, to a file "
    "for each device in this folder.",
)
@click.option(
    "--again", is_flag=True, help="With --from: also devices that enrolled or were invited before."
)
@force_option
@operator_options
def invite(
    fleet: str,
    device: str | None,
    *,
    list_file: Path | None,
    valid_s: int,
    out: Path | None,
    again: bool,
    force: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Create an invitation, with which one device can enrol.

    It works once, for DEVICE, or for any device if none is given. With --from it creates one for
    each device of a list; repeating that leaves out devices that are enrolled or invited, unless
    --again is set.
    """
    if list_file is not None:
        if device is not None or out is None:
            raise click.UsageError("--from needs --out FOLDER, and takes no DEVICE")
        if force:
            raise click.UsageError("--force is for a single invitation: --from has --again")
        _invite_all(fleet, read_device_list(list_file), out, valid_s, again, as_json, where)
        return
    if again:
        raise click.UsageError("--again is for --from: a single invitation is always made")
    if device is not None:
        check_device_name(device)
    check_writable(out, force=force)
    with operator_connection(**where) as client:
        found = with_dates(client.invite(fleet, device, valid_s=valid_s))
    print_token(found, out, as_json=as_json)
    remark(f"For {device or 'any one device'}, once, until {found['expires']}.")


def print_token(found: dict[str, Any], out: Path | None, *, as_json: bool) -> None:
    """Print a reply's token, or write it to a file that only its owner can read."""
    if out:
        found["file"] = _write_invitation(found, out)
    print_json(found) if as_json else click.echo(found.get("file") or found["token"])


@click.command(epilog=example("edgemerge fleet replace pumps pump-3 --out invitation"))
@click.argument("fleet")
@click.argument("device")
@valid_option
@token_out_options
@operator_options
def replace(
    fleet: str,
    device: str,
    *,
    valid_s: int,
    out: Path | None,
    force: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Create an invitation for new hardware of a device.

    The new hardware enrols with it under the name of DEVICE. Its history, episodes, reviews,
    settings and contributions stay, and the token of the old hardware stops working then.
    """
    check_writable(out, force=force)
    with operator_connection(**where) as client:
        found = with_dates(client.replace(fleet, device, valid_s=valid_s))
    print_token(found, out, as_json=as_json)
    remark(
        f"For the new hardware of {device}, once, until {found['expires']}. "
        "The old token works until it enrols."
    )


def _write_invitation(invitation: dict[str, Any], file: Path) -> str:
    """Move the token of an invitation into a file, readable by its owner only; return its name."""
    from edgemerge.files import write_atomically

    write_atomically(f"{invitation.pop('token')}\n".encode(), file)
    return str(file)


MAX_LISTED_DEVICES = 10_000
MAX_LABEL_CHARS = 100


def read_device_list(path: Path) -> dict[str, str]:
    """Read the names of devices, each with its label, which may be empty.

    Raises:
        SettingError: The file has no column `device`, no device, or one that cannot be: nothing
            is made then. It names every such line, up to ten.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise SettingError(f"{path} cannot be read as text: {why}") from error
    head = text.partition("\n")[0]
    rows = csv.DictReader(
        text.splitlines(), delimiter=";" if head.count(";") > head.count(",") else ","
    )
    names = [(each or "").strip().lower() for each in rows.fieldnames or ()]
    if "device" not in names:
        raise SettingError(f"found the columns {names} in {path}, expected one named device")
    rows.fieldnames = names
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    wrong: list[str] = []
    for row in rows:
        device, label = ((row.get(name) or "").strip() for name in ("device", "label"))
        why = _why_not_listed(device, label, lines)
        if why:
            wrong.append(f"line {rows.line_num}: {why}")
        lines.setdefault(device, rows.line_num)
        found[device] = label
    if not found:
        raise SettingError(f"{path} names no device: write one in each line below the header")
    if len(found) > MAX_LISTED_DEVICES:
        wrong.append(f"{len(found)} devices, expected at most {MAX_LISTED_DEVICES}")
    if wrong:
        more = f"; and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise SettingError(f"{path}: {'; '.join(wrong[:10])}{more}. Nothing was made.")
    return found


def _why_not_listed(device: str, label: str, lines: Mapping[str, int]) -> str:
    if not device:
        return "no device"
    if device in lines:
        return f"{device} is in line {lines[device]} already"
    if len(label) > MAX_LABEL_CHARS or not label.isprintable():
        return f"the label of {device} is too long or not printable"
    try:
        check_device_name(device)
    except CommandError as error:
        return str(error)
    return ""


INVITED_COLUMNS = headings("device", "file", "what")


def _invite_all(
    fleet: str,
    wanted: Mapping[str, str],
    folder: Path,
    valid_s: int,
    again: bool,  # noqa: FBT001 - private
    as_json: bool,  # noqa: FBT001
    where: Mapping[str, Any],
) -> None:
    """Invite devices that are not enrolled or invited, and write their invitations to files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    rows, expires = [], None
    with operator_connection(**where) as client:
        enrolled = {each["device"] for each in client.devices(fleet)}
        for device, label in wanted.items():
            file, what = folder / device, "invited"
            if device in enrolled and not again:
                what = "left out: enrolled before"
            elif file.exists() and not again:
                what = "left out: invited before"
            else:
                made = client.invite(fleet, device, valid_s=valid_s)
                expires = format_time(made["expires"])
                _write_invitation(made, file)
            if label and what == "invited":
                now = client.settings(fleet, device)
                kept = {name: now[name] for name in ("limit", "false_alarms")}
                client.change_settings(fleet, device, **kept, label=label)
            rows.append({"device": device, "file": str(file), "what": what})
    print_json(rows) if as_json else print_table(rows, INVITED_COLUMNS)
    made_count = sum(row["what"] == "invited" for row in rows)
    until = "" if expires is None else f", each once, until {expires}"
    remark(f"{made_count} of {len(rows)} devices invited{until}.")
    if made_count < len(rows):
        remark("Those left out keep what they have; --again makes new invitations for them too.")


@click.command(epilog=example("edgemerge fleet devices pumps"))
@click.argument("fleet")
@operator_options
def devices(fleet: str, *, as_json: bool, **where: Any) -> None:
    """List the enrolled devices."""
    with operator_connection(**where) as client:
        found = [with_dates(each) for each in client.devices(fleet)]
    print_json(found) if as_json else print_table(found, DEVICE_COLUMNS)


@click.command(epilog=example("edgemerge fleet revoke pumps pump-3"))
@click.argument("fleet")
@click.argument("device")
@operator_options
def revoke(fleet: str, device: str, *, as_json: bool, **where: Any) -> None:
    """Revoke a device's token and cut its connections.

    The contributions of DEVICE stay; `drop` removes them.
    """
    with operator_connection(**where) as client:
        client.revoke(fleet, device)
    words = f"Revoked {device} of {fleet}. Its contributions stay; `drop` removes them."
    print_json({"fleet": fleet, "revoked": device}) if as_json else click.echo(words)


@click.command(epilog=example("edgemerge fleet contributions pumps"))
@click.argument("fleet")
@operator_options
def contributions(fleet: str, *, as_json: bool, **where: Any) -> None:
    """List the contributions of all devices."""
    with operator_connection(**where) as client:
        found = client.contributions(fleet)
    found["contributions"] = [with_dates(each) for each in found["contributions"]]
    print_json(found) if as_json else print_table(found["contributions"], CONTRIBUTION_COLUMNS)


@click.command(epilog=example("edgemerge fleet drop pumps pump-3 --yes"))
@click.argument("fleet")
@click.argument("device")
@click.option(
    "--incarnation", type=click.IntRange(0), help="Delete those of this incarnation only."
)
@yes_option
@operator_options
def drop(
    fleet: str, device: str, *, incarnation: int | None, yes: bool, as_json: bool, **where: Any
) -> None:
    """Delete all contributions of a device, or those of one incarnation.

    The sums of FLEET are recomputed without them. This cannot be undone; `exclude` can.
    """
    which = "all contributions" if incarnation is None else f"incarnation {incarnation}"
    confirm(f"Delete {which} of {device} in {fleet}?", yes=yes)
    with operator_connection(**where) as client:
        dropped = client.drop(fleet, device, incarnation=incarnation)
    found = {"fleet": fleet, "device": device, "dropped": dropped}
    print_json(found) if as_json else click.echo(f"Dropped {dropped} contributions of {device}.")


CHOICE_COLUMNS = headings("number", "at", "actor", "what", "undone")
LOSSES = ("alone", "before", "after", "shift")
PREVIEW_COLUMNS = headings("device", "pattern", "samples", "joined", *LOSSES, joined="OTHERS")
LOSS_DIGITS = 4  # significant
MAX_NAMES = 5  # per line
EFFECT_NOTE = "Devices that report follow it soon, others at their next exchange."
selection_options = options(
    option(
        "--source",
        "sources",
        old={"--from": "--source"},
        metavar="DEVICE",
        multiple=True,
        help="Device whose contributions are adopted; can be repeated.",
    ),
    option(
        "--no-source",
        old={"--from-nobody": "--no-source"},
        is_flag=True,
        help="Adopt no contributions at all.",
    ),
    option(
        "--target",
        "targets",
        old={"--to": "--target"},
        metavar="DEVICE",
        multiple=True,
        required=True,
        help="Device that adopts them; can be repeated.",
    ),
)


@click.command(epilog=example("edgemerge fleet choices pumps --include-undone"))
@click.argument("fleet")
@option(
    "--include-undone",
    "undone",
    old={"--all": "--include-undone"},
    is_flag=True,
    help="Show undone choices too.",
)
@operator_options
def choices(fleet: str, *, undone: bool, as_json: bool, **where: Any) -> None:
    """List the choices: who adopts from whom, what is excluded."""
    with operator_connection(**where) as client:
        found = [each for each in client.choices(fleet) if undone or each["undone"] is None]
    shown = list(map(with_dates, found))
    print_json(shown) if as_json else print_table(
        [{**each, "what": describe_choice(each)} for each in shown], CHOICE_COLUMNS
    )
    if not shown:
        remark(f"No choices: every device of {fleet} adopts from all others.")


@click.command(
    epilog=example("edgemerge fleet adopt pumps --source pump-1 --source pump-2 --target pump-3")
)
@click.argument("fleet")
@selection_options
@operator_options
def adopt(
    fleet: str,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    *,
    no_source: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Choose from which sources devices adopt.

    From now on the targets adopt the contributions of the sources and of no other device. The
    newest choice for a device counts. `preview` shows the effect first.
    """
    check_sources(sources, no_source=no_source)
    with operator_connection(**where) as client:
        made = client.adopt(fleet, sources, targets)
    print_choice(made, as_json=as_json)


@click.command(epilog=example("edgemerge fleet exclude pumps pump-3 0 normal"))
@click.argument("fleet")
@click.argument("device")
@click.argument("incarnation", type=click.IntRange(min=0))
@click.argument("pattern")
@operator_options
def exclude(
    fleet: str, device: str, incarnation: int, pattern: str, *, as_json: bool, **where: Any
) -> None:
    """Exclude one contribution from all merges.

    `contributions` lists INCARNATION and PATTERN. The server keeps the contribution and its newer
    revisions, and `undo` includes it again. `drop` deletes instead, `revoke` blocks the device.
    """
    with operator_connection(**where) as client:
        made = client.exclude(fleet, device, incarnation, pattern)
    print_choice(made, as_json=as_json)


@click.command(epilog=example("edgemerge fleet undo pumps 4"))
@click.argument("fleet")
@click.argument("number", type=click.IntRange(min=1))
@operator_options
def undo(fleet: str, number: int, *, as_json: bool, **where: Any) -> None:
    """Undo a choice.

    `choices` lists their NUMBER. Undoing one twice has no further effect.
    """
    with operator_connection(**where) as client:
        found = client.undo(fleet, number)
    words = f"Undone {number}: {describe_choice(found)}."
    print_json(with_dates(found)) if as_json else click.echo(words)
    remark(EFFECT_NOTE)


@click.command(epilog=example("edgemerge fleet preview pumps --source pump-1 --target pump-3"))
@click.argument("fleet")
@selection_options
@operator_options
def preview(
    fleet: str,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    *,
    no_source: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Show what `adopt` would change, without doing it.

    For each pattern of each target, the loss of its own data: without others (ALONE), as merged now
    (BEFORE) and with the selection (AFTER). SHIFT is AFTER / ALONE; OTHERS counts the samples of
    other devices.
    """
    check_sources(sources, no_source=no_source)
    with operator_connection(**where) as client:
        found = client.preview(fleet, sources, targets)
    if as_json:
        print_json(found)
    else:
        rows = [row | {k: float(f"{row[k]:.{LOSS_DIGITS}g}") for k in LOSSES} for row in found]
        print_table(rows, PREVIEW_COLUMNS)
    if not found:
        remark("None of the targets has shared yet: nothing to compare.")


def check_sources(sources: tuple[str, ...], *, no_source: bool) -> None:
    """Require sources, or --no-source."""
    if bool(sources) == no_source:
        raise click.UsageError("expected sources: add --source DEVICE, or --no-source for none")


def print_choice(made: dict[str, Any], *, as_json: bool) -> None:
    """Print a new choice."""
    words = f"Choice {made['number']}: {describe_choice(made)}."
    print_json(with_dates(made)) if as_json else click.echo(words)
    remark(EFFECT_NOTE)


def describe_choice(choice: dict[str, Any]) -> str:
    """Describe a choice in words."""
    past = {"exclude": "excluded", "revoke": "excluded"}  # "revoke" is its name in older servers
    past |= {"approve": "approved", "dismiss": "dismissed"}
    if choice["kind"] in past:
        key = f"{choice['device']}/{choice['incarnation']}/{choice['pattern']}"
        comment = f" ({choice['comment']})" if choice.get("comment") else ""
        return f"{past[choice['kind']]} {key}{comment}"
    return f"{join_names(choice['targets'])} adopt from {join_names(choice['sources'])} only"


def join_names(names: list[str]) -> str:
    """Join a few names, and count the rest."""
    more = len(names) - MAX_NAMES
    return (", ".join(names[:MAX_NAMES]) or "no device") + (f" and {more} more" if more > 0 else "")


AUDIT_PAGE_SIZE = 500
AUDIT_COLUMNS = headings("seq", "at", "actor", "action", "fleet", "subject")


@click.command(epilog=example("edgemerge fleet audit --fleet pumps --last 50"))
@click.option("--fleet", help="Show only entries of this fleet.")
@click.option(
    "--last", type=click.IntRange(min=0), default=20, show_default=True, help="Number of entries."
)
@option(
    "--expect-head",
    "known",
    old={"--known": "--expect-head"},
    metavar="HASH",
    help="Fail unless the log still contains this head, printed earlier.",
)
@operator_options
def audit(fleet: str | None, last: int, known: str | None, *, as_json: bool, **where: Any) -> None:
    """Verify the audit log and show its last entries.

    The hash of each entry covers the one before. To detect that the whole log was rewritten, note
    the head that is printed and give it as --expect-head later. A server deletes the oldest entries
    of a long log; then it is verified from the first that is left, which a checkpoint must seal.
    """
    with operator_connection(**where) as client:
        page = client.audit(limit=1)
        problem, oldest = page.get("problem"), [entry["seq"] for entry in page["entries"]]
        try:
            found = _verified_log(client, fleet, last, known)
        except RejectedError:
            if [entry["seq"] for entry in client.audit(limit=1)["entries"]] == oldest:
                raise
            found = _verified_log(client, fleet, last, known)  # the oldest were deleted meanwhile
    if not found.met:
        raise CommandError(
            f"found no entry with the hash {known} from entry {found.first:,} on: the audit log "
            "was rewritten since, or that entry was among the oldest, which the server deletes",
            ExitCode.REFUSED,
        )
    if problem:
        raise CommandError(f"the audit log was cut or rewritten: {problem}", ExitCode.REFUSED)
    if as_json:
        shown = {"first": found.first, "verified": found.last, "head": found.head}
        print_json({**shown, "entries": list(found.shown)})
    else:
        print_table(found.shown, AUDIT_COLUMNS)
    since = f" from entry {found.first:,} on; a checkpoint seals the older ones"
    number = f"{found.last - found.first + 1:,} entries{since if found.first > 1 else ''}"
    remark(f"Verified {number}. Head: {found.head}")


@dataclass
class VerifiedLog:
    """What was read of the audit log: its first and last entry, and those to show."""

    shown: deque[Any]
    first: int = 1
    last: int = 0
    head: str = ""
    met: bool = False


def _verified_log(client: Any, fleet: str | None, last: int, known: str | None) -> VerifiedLog:
    """Verify the audit log; keep its last entries, and see whether the known head is in it."""
    from edgemerge.server.audit import verify_chain

    found = VerifiedLog(deque(maxlen=last), met=known is None)
    for entry in verify_chain(_audit_entries(client)):
        if not found.last and entry["seq"] > 1:  # a checkpoint seals what was before
            found.first, found.met = entry["seq"], found.met or known == entry["previous"]
        found.last, found.head = entry["seq"], entry["hash"]
        found.met = found.met or known == found.head
        if fleet in (None, entry["fleet"]):
            found.shown.append(with_dates(entry))
    return found


def _audit_entries(client: Any) -> Iterator[dict[str, Any]]:
    after = 0
    while found := client.audit(after=after, limit=AUDIT_PAGE_SIZE)["entries"]:
        yield from found
        after = found[-1]["seq"]


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
    comment_option,
)


@click.command(epilog=example("edgemerge fleet trust pumps quorum:2"))
@click.argument("fleet")
@click.argument("rule")
@operator_options
def trust(fleet: str, rule: str, *, as_json: bool, **where: Any) -> None:
    """Choose which contributions others adopt at once.

    RULE is members: those of every enrolled device. quorum:K: those of which K devices shared a
    similar pattern. person: those that an operator approved. What does not pass is stored and
    waits; `waiting` lists it.
    """
    _check_trust(rule)
    with operator_connection(**where) as client:
        found = with_dates(client.set_trust(fleet, rule))
    print_json(found) if as_json else click.echo(f"The trust of {fleet} is {found['trust']}.")
    remark(EFFECT_NOTE)


def _check_trust(rule: str) -> None:
    """Refuse a rule that no fleet can have, before the server is asked."""
    from edgemerge.core.trust import TRUST_WORDS, Trust

    try:
        Trust.parse(rule)
    except SettingError:
        raise CommandError(f"found the rule {rule!r}, expected {TRUST_WORDS}") from None


@click.command(epilog=example("edgemerge fleet waiting pumps"))
@click.argument("fleet")
@operator_options
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
@operator_options
def approve(*, as_json: bool, **about: Any) -> None:
    """Let other devices adopt a contribution.

    It covers newer revisions while they stay similar to what is approved now. `undo` takes it back.
    """
    print_choice(_decide("approve", **about), as_json=as_json)


@click.command(epilog=example("edgemerge fleet dismiss pumps pump-3 0 normal"))
@decision_options
@operator_options
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


EPISODE_COLUMNS = headings("device", "number", "began", "lasted", "peak", "state", "what")
EPISODES_PER_PAGE = 500
MAX_RETRY_S = 30.0  # between two attempts to reach the server
SHOWN_INPUTS = 3


@click.command(
    epilog=example(
        "edgemerge fleet episodes pumps --open",
        "edgemerge fleet episodes pumps --since '8 hours' --json",
        "edgemerge fleet episodes pumps --follow",
    )
)
@click.argument("fleet")
@click.option("--open", "open_only", is_flag=True, help="Leave out episodes that have ended.")
@click.option(
    "--since",
    metavar="TIME",
    help='Show what changed since: "8 hours" (ago), or 2026-11-17T06:00 in UTC.  [default: 1 day]',
)
@click.option("--device", help="Show episodes of this device only.")
@click.option("--follow", is_flag=True, help="Go on, and print every change, until Ctrl-C.")
@click.option(
    "--interval-s",
    type=click.FloatRange(0.2, 60.0),
    default=2.0,
    show_default=True,
    help="Seconds between two questions to the server with --follow.",
)
@operator_options
def episodes(
    fleet: str,
    *,
    open_only: bool,
    since: str | None,
    device: str | None,
    follow: bool,
    interval_s: float,
    as_json: bool,
    **where: Any,
) -> None:
    """List the episodes of a fleet: each alarm from its first sample to its last.

    In the order of their last change: an episode begins, ends, is acknowledged or commented, or is
    found to be like a known fault. With --open and no --since, all that are open.

    --follow prints one line for each change, with --json one JSON object, until Ctrl-C. It begins
    with what would be listed without it, and then also prints episodes that end.
    """
    start = 0.0 if open_only and since is None else _since(since or "1 day")
    with operator_connection(**where) as client:
        only = {"device": device, "limit": EPISODES_PER_PAGE}
        pages = list(_episode_pages(client, fleet, start, open_only=open_only, **only))
        found, mark = [each for page, _ in pages for each in page], pages[-1][1]
        if follow:
            listed = {each["id"] for each in found} if open_only else None
            _print_changes(found, as_json=as_json)
            _follow(client, fleet, mark, listed, interval_s=interval_s, as_json=as_json, **only)
    if as_json:
        print_json([with_dates(each) for each in found])
        return
    print_table(map(describe_episode, found), EPISODE_COLUMNS)
    if not found:
        remark(f"No episode of {fleet} " + ("is open." if open_only else "changed in that time."))


def _episode_pages(
    client: Any, fleet: str, since: float, **asked: Any
) -> Iterator[tuple[list[dict[str, Any]], float]]:
    """Yield pages of episodes that changed, each with the mark from which to read on."""
    more = True
    while more:
        answer = client.episodes(fleet, since=since, **asked)
        since, more = answer["next"], answer["more"]
        yield answer["episodes"], since


def _follow(
    client: Any,
    fleet: str,
    mark: float,
    listed: set[int] | None,
    *,
    interval_s: float,
    as_json: bool,
    **only: Any,
) -> None:
    """Print changes after a mark until a signal ends it; wait while the server is away.

    With `listed`, episodes that had ended before and were not listed are left out at first.
    """
    from edgemerge.daemon import Backoff

    backoff = Backoff(2.0 * interval_s, MAX_RETRY_S)
    while True:
        delay_s = interval_s
        try:
            for page, after in _episode_pages(client, fleet, mark, **only):
                mark = after
                old = [each for each in page if listed is not None and each["ended"] is not None]
                skipped = [each["id"] for each in old if each["id"] not in (listed or ())]
                _print_changes([e for e in page if e["id"] not in skipped], as_json=as_json)
            listed = None
            backoff.reset()
        except UnavailableError as error:
            if not backoff.failures:
                remark(f"The server cannot be reached, and is asked again: {error}")
            delay_s = backoff.next(retry_after_s=error.retry_s)
        sleep(delay_s)


def _print_changes(episodes: list[dict[str, Any]], *, as_json: bool) -> None:
    for each in episodes:
        if as_json:
            print_json_line(with_dates(each))
        else:
            row = describe_episode(each)
            about = (row["device"], f"episode {row['number']}")
            words = (*about, row["state"], row["peak"], row["what"])
            click.echo(f"{format_time(each['changed'])}  {'  '.join(filter(None, words))}")


def describe_episode(episode: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of an episode: how long it lasted, what became of it, what carried it."""
    from edgemerge.delivery import factor_words, figure

    ended = episode["ended"]
    state = "open" if ended is None else "ended"
    if episode["acknowledged"] is not None:
        state += f", acknowledged by {episode['acknowledged_by']}"
    inputs = factor_words(episode["inputs"][:SHOWN_INPUTS])
    like = [f"like {episode['fault']}"] if episode["fault"] else []
    comment = [f"({episode['comment']})"] if episode["comment"] else []
    return {
        "device": episode["device"],
        "number": episode["number"],
        "began": format_time(episode["began"]),
        "lasted": None if ended is None else f"{max(0.0, ended - episode['began']):,.0f} s",
        "peak": f"{figure(episode['peak'])} times the usual",
        "state": state,
        "what": "; ".join(filter(None, (*like, inputs, *comment))),
    }


def _since(asked: str) -> float:
    """Return a moment in the past, given as how long ago or as a time of day."""
    from edgemerge.core.limit import seconds_of

    seconds = seconds_of(asked)
    if seconds is not None:
        return max(0.0, time() - seconds)
    moment = None if asked.strip().lower() == "off" else _until(asked)
    if moment is None:
        raise click.UsageError(f"found --since {asked!r}, expected such as '8 hours'")
    return max(0.0, moment)


DECISIONS = (
    *PATTERN_DECISIONS,
    *("acknowledge", "snooze", "watch", "relearn", "accept-drift"),
)
REVIEW_COLUMNS = headings("number", "at", "by", "what", "state", "comment")


@click.command(epilog=example("edgemerge fleet monitor pumps pump-3"))
@click.argument("fleet")
@click.argument("device")
@operator_options
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
        status | {"problems": found["status"].get("problems", [])},
        state=found["state"],
        heard=format_time(found["heard"]),
        **{"reviews waiting": found["waiting"]},
    )


@click.command(
    epilog=example(
        "edgemerge fleet review pumps pump-3 odd-1 approve --comment 'a new speed'",
        "edgemerge fleet review pumps pump-3 odd-2 fault 'worn bearing'",
        "edgemerge fleet review pumps pump-3 acknowledge --episode 7",
        "edgemerge fleet review pumps pump-3 snooze '8 hours'",
    )
)
@click.argument("fleet")
@click.argument("device")
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="[PATTERN] DECISION [NAME|TIME]",
    shell_complete=lambda _ctx, _, text: [each for each in DECISIONS if each.startswith(text)],
)
@click.option("--episode", type=click.IntRange(min=0), help="Acknowledge this one, not all.")
@hours_option
@comment_option
@yes_option
@operator_options
def review(
    fleet: str,
    device: str,
    words: tuple[str, ...],
    *,
    episode: int | None,
    hours: float | None,
    comment: str,
    yes: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Decide about a device's pattern, episode or learning.

    DECISION is one of these. approve: PATTERN is normal and is learnt. fault: later alarms carry
    NAME. dismiss: it is no longer shown. undo: PATTERN is unreviewed again, exactly.

    acknowledge: episodes were seen. snooze: no alarm for a TIME: how long ("8 hours"), until when
    (2026-11-17T18:00, in UTC unless it says otherwise), or off. watch: end commissioning now.
    relearn: forget what the device saw and begin commissioning again. accept-drift: what was learnt
    up to now is normal.

    The device acts once, when it next reports, also if it is offline now. `monitor` lists patterns
    and episodes, `reviews` what became of decisions.
    """
    decision, pattern, name = _decision_in(words)
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
@operator_options
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


VERSION_COLUMNS = headings("version", "at", "by", "what", "comment")


@click.command(
    epilog=example(
        "edgemerge fleet settings pumps pump-3 --label 'Pump of hall B' --limit 5",
        "edgemerge fleet settings pumps pump-3 --undo 2",
    )
)
@click.argument("fleet")
@click.argument("device")
@click.option("--label", help="What people call the device; '' for nothing but its name.")
@click.option("--limit", type=float, help="Fixed limit of the alarm level.")
@click.option("--false-alarms", metavar="RATE", help="Promised rate instead, such as '1 per week'.")
@click.option("--own-limit", is_flag=True, help="The limit of the device's own file.")
@undo_option
@comment_option
@operator_options
def settings(
    fleet: str,
    device: str,
    *,
    label: str | None,
    limit: float | None,
    false_alarms: str | None,
    own_limit: bool,
    undo: int | None,
    comment: str,
    as_json: bool,
    **where: Any,
) -> None:
    """Show or change the label and limit of a device.

    Without an option it shows them, and what became of them. What is not named stays as it is. Each
    change is a version, which the device applies once, when it next reports; --undo goes back to
    the one before the newest. The device's own file stays the default.
    """
    limits = [limit is not None, false_alarms is not None, own_limit]
    changes = label is not None or any(limits)
    if sum(limits) > 1 or (changes and undo is not None):
        raise click.UsageError(
            "expected one of --limit, --false-alarms and --own-limit, or --undo alone"
        )
    _check_limit(limit, false_alarms)
    with operator_connection(**where) as client:
        if undo is not None:
            found = client.undo_settings(fleet, device, undo)
        else:
            found = client.settings(fleet, device)
        if changes:
            chosen = {name: found[name] for name in ("label", "limit", "false_alarms")}
            chosen |= {} if label is None else {"label": label}
            chosen |= {"limit": limit, "false_alarms": false_alarms} if any(limits) else {}
            found = client.change_settings(fleet, device, **chosen, comment=comment)
    _print_settings(found, as_json=as_json)
    if found["state"] == "waiting":
        remark("The device applies them when it next reports.")


def _check_limit(limit: float | None, false_alarms: str | None) -> None:
    """Refuse what no limit can be, before the server is asked."""
    from edgemerge.core.limit import Limit

    Limit(limit, false_alarms)


def _print_settings(found: Mapping[str, Any], *, as_json: bool) -> None:
    versions = [with_dates(each) for each in found["versions"]]
    if as_json:
        print_json({**found, "versions": versions})
        return
    chosen = {name: found[name] for name in ("version", "label", "limit", "false_alarms")}
    print_fields({**chosen, "state": _state(found)})
    rows = [{**each, "what": describe_settings(each)} for each in versions]
    if rows:
        print_table(rows, VERSION_COLUMNS)


def describe_settings(version: Mapping[str, Any]) -> str:
    """Describe a version of a device's settings in words."""
    names = ("label", "limit", "false_alarms")
    found = {name: version[name] for name in names if version[name]}
    if version["limit"]:
        found["limit"] = f"{version['limit']:g}"
    words = [f"{name.replace('_', ' ')} {value}" for name, value in found.items()]
    said = ", ".join(words) or "as the device's own file says"
    return said if version["undoes"] is None else f"{said} (undoes {version['undoes']})"


CONFIGURED_COLUMNS = headings("device", "version", "in_force", "state", "why", in_force="IN FORCE")


@click.command(
    epilog=example(
        "edgemerge fleet configure pumps --file pumps.toml --comment night",
        "edgemerge fleet configure pumps --undo 3",
        "edgemerge fleet configure pumps --device pump-3 --file pump-3.toml",
    )
)
@click.argument("fleet")
@click.option("--file", type=FILE, metavar="TABLES.toml", help="Tables like those of an agent.")
@click.option("--device", metavar="NAME", help="For this device only, on top of the fleet's.")
@undo_option
@comment_option
@operator_options
def configure(
    fleet: str,
    *,
    file: Path | None,
    device: str | None,
    undo: int | None,
    comment: str,
    as_json: bool,
    **where: Any,
) -> None:
    """Show or change the configuration of a fleet's agents.

    Without --file and --undo it shows the newest version, earlier ones, and what became of it on
    each device. A device applies a version when it next reports, and what its own file says goes
    first. Programs to run, paths, secrets, the exchange, the release gate and report_values can be
    set in the device's own file only.
    """
    from edgemerge.agent.config import read_fleet_tables

    if file is not None and undo is not None:
        raise click.UsageError("expected one of --file and --undo")
    tables = None if file is None else read_fleet_tables(file)
    with operator_connection(**where) as client:
        if tables is not None:
            found = client.configure(fleet, tables, device=device, comment=comment)
        elif undo is not None:
            found = client.undo_configuration(fleet, undo, device=device)
        else:
            found = client.configuration(fleet, device)
    versions = [with_dates(each) for each in found["versions"]]
    if as_json:
        print_json({**found, "versions": versions})
        return
    print_fields({"version": found["version"], "tables": describe_tables(found["tables"])})
    print_table(found["devices"], CONFIGURED_COLUMNS)
    if versions:
        rows = [{**each, "what": _describe_version(each)} for each in versions]
        print_table(rows, VERSION_COLUMNS)
    if any(each["state"] == "waiting" for each in found["devices"]):
        remark("Devices apply it when they next report.")


def describe_tables(tables: Mapping[str, Any]) -> str:
    """Describe tables of a configuration in one line."""
    from edgemerge.exchange.configuration import table_lines

    return ", ".join(table_lines(tables)) or "nothing"


def _describe_version(version: Mapping[str, Any]) -> str:
    words = describe_tables(version["tables"])
    return words if version["undoes"] is None else f"{words} (undoes {version['undoes']})"


def _decision_in(words: tuple[str, ...]) -> tuple[str, str | None, str | None]:
    """Return decision, pattern or time, and name; the pattern may also come after the decision."""
    first, *rest = words if words[0] in DECISIONS else (*words[1::-1], *words[2:])
    if first not in DECISIONS or len(rest) > 2:
        raise click.UsageError(
            f"found {' '.join(words)!r}, expected [PATTERN] DECISION [NAME|TIME] with a DECISION "
            f"of {', '.join(DECISIONS)}"
        )
    return first, rest[0] if rest else None, rest[1] if len(rest) > 1 else None


def _must_fit(decision: str, pattern: str | None, name: str | None, hours: float | None) -> None:
    if (pattern is not None) != (decision in PATTERN_DECISIONS):
        raise click.UsageError(
            f"found {'a' if pattern else 'no'} PATTERN for {decision}, expected one for "
            f"{', '.join(PATTERN_DECISIONS)} only"
        )
    if (name is not None) != (decision == "fault"):
        raise click.UsageError("a fault needs a NAME, and nothing else has one: PATTERN fault NAME")
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


def _state(decided: Mapping[str, Any]) -> str:
    """Describe what became of a review or of settings."""
    return f"refused: {decided['why']}" if decided["state"] == "refused" else decided["state"]


def _dated(review: Mapping[str, Any]) -> dict[str, Any]:
    return with_dates(review) | {"until": format_time(review["until"])}


RECEIVER_COLUMNS = headings(
    "receiver", "kind", "address", "events", "every_minutes", "delivered", "waiting", "trouble"
)
EVENTS = ("alarm", "all clear", "problem", "offline", "merge refused")
SECONDS_PER_MINUTE = 60.0
RECEIVER_SECTIONS = {
    "Receivers": {
        "list": f"{__name__}:list_receivers",
        "add": f"{__name__}:add_receiver",
        "remove": f"{__name__}:remove_receiver",
        "test": f"{__name__}:test_receiver",
    }
}


@click.group(
    cls=LazyGroup,
    sections=RECEIVER_SECTIONS,
    epilog=example("edgemerge fleet receivers list pumps"),
)
def receivers() -> None:
    """Choose who gets messages about alarms and problems.

    The server sends them: by webhook, to ntfy, to a chat like Slack, or by e-mail.
    """


@click.command("list", epilog=example("edgemerge fleet receivers list pumps"))
@click.argument("fleet")
@operator_options
def list_receivers(fleet: str, *, as_json: bool, **where: Any) -> None:
    """List the receivers of a fleet, without their secrets."""
    with operator_connection(**where) as client:
        found = [with_dates(each) for each in client.receivers(fleet)]
    print_json(found) if as_json else print_table(
        [_with_minutes(each) | {"events": join_names(each["events"])} for each in found],
        RECEIVER_COLUMNS,
    )
    if not found:
        remark(f"{fleet} has no receivers: `edgemerge fleet receivers add` adds one.")


def _with_minutes(receiver: Mapping[str, Any]) -> dict[str, Any]:
    """Return a receiver with the unit of --every-minutes; JSON keeps that of HTTP."""
    shown = {**receiver, "every_minutes": receiver["every_s"] / SECONDS_PER_MINUTE}
    return {name: value for name, value in shown.items() if name != "every_s"}


@click.command(
    "add",
    epilog=example(
        "edgemerge fleet receivers add pumps phone --kind ntfy \\",
        "    --url https://ntfy.example.org/pumps-7f3a",
        "edgemerge fleet receivers add pumps shift --kind email --host localhost \\",
        "    --security none --sender hub@example.org --to shift@example.org",
    ),
)
@click.argument("fleet")
@click.argument("receiver")
@click.option(
    "--kind",
    type=click.Choice(["webhook", "ntfy", "slack", "email"]),
    default="webhook",
    show_default=True,
    help="What it is.",
)
@click.option("--url", help="Where to send, http or https; for ntfy it ends with the topic.")
@click.option("--host", help="Mail server.")
@click.option(
    "--smtp-port",
    "port",
    type=click.IntRange(1, 65535),
    help="Port of the mail server.  [default: 587, 465 or 25, by --security]",
)
@click.option(
    "--security",
    type=click.Choice(["starttls", "tls", "none"]),
    help="Encryption to the mail server.  [default: starttls]",
)
@click.option("--sender", help="Address that mails come from.")
@click.option("--to", multiple=True, help="Address that mails go to; may be repeated.")
@click.option("--username", help="Name to log in to the mail server with.")
@click.option(
    "--secret-from",
    type=FILE,
    help="File here with the token or password; the server stores it and never shows it again.",
)
@click.option("--secret-file", metavar="NAME", help="Or its name in the server's --secrets-folder.")
@click.option(
    "--event",
    "events",
    type=click.Choice(EVENTS),
    multiple=True,
    help="What to send; may be repeated.  [default: alarm, all clear]",
)
@option(
    "--every-minutes",
    "minutes",
    old={"--every": "--every-minutes"},
    type=click.FloatRange(0.0, 7 * 24 * 60.0),
    default=1.0,
    show_default=True,
    help="Send at most one message in so many minutes; the rest is summed up.",
)
@operator_options
def add_receiver(
    fleet: str,
    receiver: str,
    *,
    kind: str,
    secret_from: Path | None,
    minutes: float,
    as_json: bool,
    server: str,
    token_file: Path,
    ca_file: Path | None,
    **settings: Any,
) -> None:
    """Send messages to a receiver; one of that name is replaced.

    The server calls the address that is given here, from its own network.
    """
    from edgemerge.files import read_secret

    asked = {name: value for name, value in settings.items() if value}
    asked |= {name: list(asked[name]) for name in ("to", "events") if name in asked}
    if secret_from is not None:
        asked["secret"] = read_secret(secret_from, strip="\r\n")
    asked |= {"kind": kind, "every_s": minutes * SECONDS_PER_MINUTE}
    with operator_connection(server=server, token_file=token_file, ca_file=ca_file) as client:
        made = with_dates(client.set_receiver(fleet, receiver, **asked))
    print_json(made) if as_json else print_fields(_with_minutes(made))
    remark(f"`edgemerge fleet receivers test {fleet} {receiver}` sends a test message.")


@click.command("remove", epilog=example("edgemerge fleet receivers remove pumps phone"))
@click.argument("fleet")
@click.argument("receiver")
@operator_options
def remove_receiver(fleet: str, receiver: str, *, as_json: bool, **where: Any) -> None:
    """Send nothing more to a receiver."""
    with operator_connection(**where) as client:
        client.remove_receiver(fleet, receiver)
    print_json({"removed": receiver}) if as_json else click.echo(f"Removed {receiver}.")


@click.command("test", epilog=example("edgemerge fleet receivers test pumps phone"))
@click.argument("fleet")
@click.argument("receiver")
@operator_options
def test_receiver(fleet: str, receiver: str, *, as_json: bool, **where: Any) -> None:
    """Send a test message, and say whether it was accepted."""
    with operator_connection(**where) as client:
        found = client.test_receiver(fleet, receiver)
    if as_json:
        print_json(found)
    if not found["delivered"]:
        raise CommandError(
            f"{receiver} did not accept the message: {found['trouble']}; see that it runs, and its "
            f"address in `edgemerge fleet receivers list {fleet}`",
            ExitCode.UNREACHABLE,
        )
    if not as_json:
        click.echo(f"{receiver} took the message.")
