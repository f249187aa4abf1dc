"""What people decide about a device: reviews of patterns, acknowledging, snoozing, relearning.

Decisions come as commands (control socket, MQTT), or from the server in the desired-state document,
where each has a number and is acted upon once. The document also has settings of the device and the
configuration of its fleet, each with a version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgemerge.agent.config import FleetConfiguration, MonitorConfig
from edgemerge.agent.judge import Judge
from edgemerge.agent.state import MAX_REFUSED_REVIEWS, AgentState, AppliedSettings, StateSaver
from edgemerge.agent.sync import iso_time
from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.limit import seconds_of
from edgemerge.core.monitor import DECISIONS

MAX_REASON_CHARS = 300
MAX_LABEL_CHARS = 100

logger = logging.getLogger(__name__)


class Reviewer:
    """Carries out what people decided, and saves it at once."""

    def __init__(
        self,
        memory: AgentState,
        judge: Judge,
        keeper: StateSaver,
        *,
        clock: Callable[[], float],
        follow: bool = True,
        monitor: MonitorConfig | None = None,
    ) -> None:
        """Act on commands, and with `follow` on reviews and settings of the server.

        `monitor` has the settings of the device's own file, which hold where the server has none.
        """
        self._monitor = monitor or MonitorConfig()
        self.configuration: FleetConfiguration | None = None  # None: it is not followed
        self._configure: Callable[[object], tuple[MonitorConfig, tuple[str, ...]]] | None = None
        self._folder = Path()
        self._memory, self._judge, self._keeper = memory, judge, keeper
        self._clock, self._follow = clock, follow
        self._looked_at: object = None  # the desired state that was acted upon
        self._done = memory.reviewed

    def command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one of `DECISION_HANDLERS`, save it, and return a sentence about it.

        Raises:
            EdgemergeError: It cannot be done; the message says why, and nothing has changed.
        """
        words = self._carry_out(str(request.get("command")).replace("-", "_"), request)
        self._judge.news()
        self._keeper.save()
        return {"done": words}

    def tend(self) -> bool:
        """Act on new settings and reviews of the server; return whether there were any."""
        desired = self._memory.desired
        if desired is self._looked_at or not self._follow:
            return False
        self._looked_at = desired
        entries = [] if desired is None else desired.get("reviews") or []
        new = [each for each in entries if each["number"] > self._memory.reviewed]
        changed = self._follow_configuration((desired or {}).get("configuration"))
        changed = self._follow_settings((desired or {}).get("settings")) or changed
        for entry in sorted(new, key=lambda each: each["number"]):
            self._act(entry)
        if new or changed:
            self._judge.news()
            self._keeper.save()
        return bool(new) or changed

    def follow_configuration(
        self,
        held: FleetConfiguration,
        folder: Path,
        configure: Callable[[object], tuple[MonitorConfig, tuple[str, ...]]],
    ) -> None:
        """Apply the fleet's configuration from now on.

        Args:
            held: What is in force now.
            folder: The state folder, where it is kept.
            configure: Applies tables; returns the settings of the monitor that hold now, and the
                tables that wait for a restart. It raises before anything has changed.
        """
        self.configuration, self._folder, self._configure = held, folder, configure

    def _follow_configuration(self, wanted: dict[str, Any] | None) -> bool:
        """Apply another version of the fleet's configuration; return whether there was one."""
        held = self.configuration
        if wanted is None or held is None or self._configure is None:
            return False
        version, tables = wanted["version"], wanted.get("tables", {})
        is_known = held.seen == version and (bool(held.refused) or held.tables == tables)
        if is_known:
            return False
        values: dict[str, Any] = {"version": version}
        try:
            self._monitor, restart = self._configure(tables)
            held = FleetConfiguration(version, tables, version, "", restart)
            values |= {"restart": list(restart)} if restart else {}
            logger.info("the fleet's configuration was applied", extra={"values": values})
        except (EdgemergeError, ArithmeticError, ValueError, TypeError, LookupError) as error:
            why = str(error)[:MAX_REASON_CHARS]
            held = replace(held, seen=version, refused=why)
            values["why"] = why
            logger.warning("the fleet's configuration was refused", extra={"values": values})
        self.configuration = held
        held.save(self._folder)
        return True

    def _follow_settings(self, wanted: dict[str, Any] | None) -> bool:
        """Apply settings of another version, once; return whether there were any."""
        memory = self._memory
        if wanted is None or wanted["version"] == memory.settings.version:
            return False
        values = {"version": wanted["version"]}
        try:
            chosen = _known_settings(wanted)
            memory.monitor.change(**self._monitor.options_with(chosen))
            memory.settings = AppliedSettings(wanted["version"], **chosen)
            logger.info("settings of the server were applied", extra={"values": values | chosen})
        except (EdgemergeError, ArithmeticError, ValueError, TypeError) as error:
            why = str(error)[:MAX_REASON_CHARS]
            memory.settings = replace(memory.settings, version=wanted["version"], refused=why)
            values["why"] = why
            logger.warning("settings of the server were refused", extra={"values": values})
        return True

    def plain(self) -> dict[str, Any]:
        """Return the last review that is done and saved, and the last ones that were refused."""
        if not self._keeper.trouble:
            self._done = self._memory.reviewed
        return {"done": self._done, "refused": [list(e) for e in self._memory.refused_reviews]}

    def _act(self, entry: dict[str, Any]) -> None:
        memory, number = self._memory, entry["number"]
        details = {name: entry[name] for name in ("by", "comment", "pattern") if entry.get(name)}
        if isinstance(by := details.get("by"), str):  # "admin ann": a role and a name
            details["by"] = by.rpartition(" ")[2]
        decision = str(entry.get("decision"))
        values = {"number": number, "decision": decision, **details}
        try:
            is_review = decision in DECISIONS
            words = self._carry_out("review" if is_review else decision, entry)
            logger.info("a review of the server: %s", words, extra={"values": values})
        except (EdgemergeError, ArithmeticError, ValueError, TypeError) as error:
            why = str(error)[:MAX_REASON_CHARS]
            memory.refused_reviews.append((number, why))
            del memory.refused_reviews[:-MAX_REFUSED_REVIEWS]
            values["why"] = why
            logger.warning("a review of the server was refused", extra={"values": values})
        memory.reviewed = number

    def _carry_out(self, decision: str, request: dict[str, Any]) -> str:
        do = DECISION_HANDLERS.get(decision)
        if do is None:
            raise SettingError(
                f"found the decision {decision!r}, known are {', '.join(DECISION_HANDLERS)}"
            )
        return do(self, request)

    def _review(self, request: dict[str, Any]) -> str:
        pattern, decision, name = (request.get(key) for key in ("pattern", "decision", "name"))
        if not isinstance(pattern, str) or not isinstance(name or "", str):
            raise SettingError('expected "pattern": its name, and for a fault "name": what it is')
        if decision == "fault" and not name:
            raise SettingError('expected "name": what to call the fault')
        monitor = self._memory.monitor
        found = monitor.find_pattern(pattern)
        monitor.review(pattern, decision, name=name or "")  # type: ignore[arg-type] # it checks
        after = {
            "approve": "is normal now",
            "fault": f"is the fault {found.name}",
            "dismiss": "is no longer shown",
            "undo": "waits for a review again"
            + (f", as {found.name}" if found.name != pattern else ""),
        }[str(decision)]
        return f"{pattern} ({found.stats.count:g} samples) {after}"

    def _acknowledge(self, request: dict[str, Any]) -> str:
        number = request.get("episode")
        if number is not None and type(number) is not int:
            raise SettingError(f'found "episode": {number!r}, expected a number, or null for all')
        self._memory.monitor.acknowledge(number)
        which = "all episodes are" if number is None else f"episode {number} is"
        return f"{which} acknowledged"

    def _snooze(self, request: dict[str, Any]) -> str:
        until = request.get("until")
        if "time" in request:
            until = parse_time(request["time"], self._clock())
        if until is None:
            self._memory.monitor.snooze(None)
            return "snoozing has ended: alarms are raised again"
        if type(until) not in (int, float):
            raise SettingError(f'found "until": {until!r}, expected seconds since 1970, or null')
        self._memory.monitor.snooze(self._judge.sample_time(float(until)))
        return f"no alarm until {iso_time(until)}, and nothing is learnt"

    def _watch(self, _request: dict[str, Any]) -> str:
        self._memory.monitor.watch()
        return "commissioning has ended: alarms are raised from now on"

    def _relearn(self, _request: dict[str, Any]) -> str:
        self._memory.monitor.relearn()
        return (
            "commissioning begins again; what was shared before is replaced by the next release "
            "that covers enough samples"
        )

    def _accept_drift(self, _request: dict[str, Any]) -> str:
        self._memory.monitor.accept_drift()
        return "what was learnt up to now is normal: drift is measured from here"


DECISION_HANDLERS: dict[str, Callable[[Reviewer, dict[str, Any]], str]] = {
    "review": Reviewer._review,
    "acknowledge": Reviewer._acknowledge,
    "snooze": Reviewer._snooze,
    "watch": Reviewer._watch,
    "relearn": Reviewer._relearn,
    "accept_drift": Reviewer._accept_drift,
}


SETTINGS = {"label": (str,), "limit": (int, float), "false_alarms": (int, float, str)}


def _known_settings(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what may be set from elsewhere, or raise SettingError.

    Paths, secrets, commands, the exchange, the release gate and whether values are reported are
    the device's own matter.
    """
    for name, value in wanted.items():
        if name != "version" and name not in SETTINGS:
            raise SettingError(f"found the setting {name!r}, known are {', '.join(SETTINGS)}")
        is_unset = value is None and name != "label"
        if name in SETTINGS and not (is_unset or type(value) in SETTINGS[name]):
            raise SettingError(f"found {name}={value!r}, expected a value of another type")
    found = {name: wanted.get(name) for name in SETTINGS}
    return found | {"label": wanted.get("label", "")[:MAX_LABEL_CHARS]}


def parse_time(text: object, now: float) -> float | None:
    """Return when a snooze ends: after a time, at a moment in ISO 8601 (UTC), or None for "off".

    >>> parse_time("2 hours", now=100.0), parse_time("off", now=100.0)
    (7300.0, None)
    >>> parse_time("1970-01-02T00:00", now=100.0)
    86400.0
    """
    words = str(text).strip().lower()
    if words == "off":
        return None
    seconds = seconds_of(words)
    if seconds is not None:
        return now + seconds
    try:
        at = datetime.fromisoformat(str(text).strip())
    except ValueError:
        raise SettingError(
            f'found the time {text!r}, expected such as "2 hours", "2026-11-17T18:00" or "off"'
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
