"""An agent's desk for tests of its reporting: the test sends, answers and moves the clock."""

from dataclasses import dataclass, field

from edgemerge import Contribution, Monitor, Stats
from edgemerge.agent.background import ReportOutcome
from edgemerge.agent.config import ReportConfig
from edgemerge.agent.judge import Verdict
from edgemerge.agent.reports import DeviceReporter
from edgemerge.agent.state import AgentState
from edgemerge.agent.sync import Clocks, SharingPolicy
from edgemerge.core.errors import UnavailableError
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.exchange.client import ReportAnswer, encode_report
from edgemerge.server.schemas import ReportRequest
from edgemerge.wire.codec import encode
from tests.agent.agents import shared, stream

P = shared()
NOON = 1_700_000_000.0  # the time of day when the clock that does not jump says 0
OK = ReportOutcome(ReportAnswer(1.0, 0))
AWAY = ReportOutcome(error=UnavailableError("away"))


@dataclass
class Desk:
    """What a reporting needs of an agent; the test sends, answers and moves the clock."""

    learner: object
    config: ReportConfig = field(default_factory=ReportConfig)
    merged: bytes = encode(Merged(P))
    now: float = 0.0
    busy: bool = False
    last: float | None = None
    reports: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    followers: list = field(default_factory=list)
    words: dict = field(default_factory=lambda: {"exchange": "ok", "told": "nothing new"})
    closed: bool = False
    wall_s: float = NOON

    def __post_init__(self):
        monitor = Monitor(self.learner, learn="always")
        self.memory = AgentState("pump-1", 1000, monitor, merged=self.merged)
        self.sharing = SharingPolicy(self.memory, gate=0.0, max_shift=1e9)
        clocks = Clocks(lambda: self.wall_s + self.now, lambda: self.now)
        self.reporting = DeviceReporter(self.memory, self, self, self.config, clocks=clocks)

    @property
    def shift(self):
        return self.sharing.shift

    def begin(self, answer):
        self.followers.append(answer)

    def send(self, report):
        assert not self.busy
        self.busy = True
        self.reports.append(ReportRequest.model_validate_json(encode_report(report)))

    def outcome(self, timeout_s=0.0):
        self.now += timeout_s if self.busy and not self.answers else 0.0
        if not (self.busy and self.answers):
            return None
        self.busy = False
        return self.answers.pop(0)

    def close(self):
        self.closed = True

    def status(self):
        counts = {"samples": 5, "alarms": 1, "skipped": 0, "learning": True}
        return counts | {"incarnation": 1000, "revision": 2, "saved": "ok"} | self.words

    def judge(self, score=1.0, *, alarm=False, index=0, pattern=None, carried=()):
        at = 12.0  # of the data, which is not told
        self.reporting.verdict(
            Verdict("pump-1", index, at, score, 4.0, alarm, pattern, carried=carried)
        )

    def tick(self, seconds=0.0, answer=None):
        self.now += seconds
        if answer is not None:
            self.answers.append(answer)
        self.reporting.tend(self.status)

    def told_by(self, answer, seconds=1.0):
        """Send the next report, answer it, and give it."""
        self.tick(seconds)
        assert self.busy, "no report is on its way"
        self.tick(0.0, answer)
        return self.reports[-1]


def told(*devices, rows=40):
    """What an exchange tells of these devices, so many samples of each."""
    notes = [
        Contribution(name, Stats.of(P, stream(rows, i + 1)), 3) for i, name in enumerate(devices)
    ]
    return Merged(P, (MergedPart.of(notes, P),))
