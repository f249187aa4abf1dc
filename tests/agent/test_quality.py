"""Problems with the data: when each begins and ends, in which words, and that none flaps."""

import numpy as np
import pytest

from edgemerge.agent.background import ReadAhead
from edgemerge.agent.config import QualityConfig
from edgemerge.agent.quality import NAMES, DataQuality
from edgemerge.agent.sources import Reading
from edgemerge.agent.sync import Clocks

RNG = np.random.default_rng(3)


class World:
    """Data quality with a clock of its own; `log` has what began (+) and ended (-)."""

    def __init__(self, *, live=True, **settings):
        self.now = 1000.0
        self.skipped, self.why, self.log = 0, "", []
        clocks = Clocks(wall=lambda: 1e9 + self.now, steady=lambda: self.now)
        options = {"clocks": clocks, "live": live, "columns": ("flow", "heat")}
        self.quality = DataQuality(QualityConfig(**settings), **options)

    def tend(self):
        found = self.quality.tend(
            skipped=self.skipped, why=self.why, waiting=lambda: "nothing is added"
        )
        self.log += [("-" if each.ended else "+") + each.problem.name for each in found]

    def wait(self, seconds, step=1.0):
        for _ in range(round(seconds / step)):
            self.now += step
            self.tend()

    def row(self, at=None, values=None, names=None):
        values = RNG.normal(size=2) if values is None else np.array(values, float)
        self.quality.row(Reading(values, at, names=names))
        self.tend()

    def rows(self, count, every_s=1.0, **row):
        for _ in range(count):
            self.now += every_s
            self.row(**row)

    def timed(self, count, start, step):
        for i in range(count):
            self.row(at=start + i * step)

    def skip(self, count, why="'x' is no finite number"):
        self.skipped, self.why = self.skipped + count, why
        self.tend()

    def words(self, name):
        (found,) = [each for each in self.quality.problems if each.name == name]
        return found.words


def test_nothing_is_wrong_with_good_rows():
    world = World(rate_hz=1.0)
    world.rows(500)
    assert world.log == []
    assert world.quality.problems == []


# no data


def test_no_row_for_half_a_minute_is_no_data_until_one_comes():
    world = World()
    world.rows(50)
    world.wait(30.0)
    assert world.log == []
    world.wait(2.0)
    assert world.log == ["+no data"]
    assert "no usable row for 32 s: nothing is added. Check what writes" in world.words("no data")
    (problem,) = world.quality.problems
    assert problem.since == 1e9 + 1000.0 + 50.0 + 31.0
    world.wait(600.0)
    assert world.log == ["+no data"]
    assert world.quality.problems[0].since == problem.since
    assert "for 11 min" in world.words("no data")
    world.rows(1)
    assert world.log == ["+no data", "-no data"]


def test_no_row_at_all_is_no_data():
    world = World()
    world.wait(31.0)
    assert world.log == ["+no data"]
    assert "no usable row since the start, for 31 s" in world.words("no data")


def test_no_data_says_that_rows_come_and_cannot_be_read():
    world = World()
    for _ in range(40):
        world.now += 1.0
        world.skip(1, "8 values instead of 4")
    assert world.log == ["+unreadable rows", "+no data"]
    assert "cannot be read (8 values instead of 4)" in world.words("no data")


@pytest.mark.parametrize(("no_data_s", "began"), [(5.0, 6.0), (100.0, 101.0), (0.0, None)])
def test_how_long_no_data_may_last_is_a_setting(no_data_s, began):
    world = World(no_data_s=no_data_s)
    world.rows(50, every_s=0.1)
    start = world.now
    while not world.log and world.now < start + 300.0:
        world.wait(1.0)
    assert (world.now - start if world.log else None) == (began and pytest.approx(began))


def test_slow_rows_are_not_missed():
    world = World()
    world.rows(1)
    for _ in range(20):  # the first pauses are new, then they are usual
        world.wait(300.0, 5.0)
        world.row()
    assert len(world.log) <= 4
    log = len(world.log)
    for _ in range(50):
        world.wait(300.0, 5.0)
        world.row()
    assert len(world.log) == log
    world.wait(20 * 400.0, 10.0)
    assert world.log[log:] == ["+no data"]


def test_times_say_how_often_rows_come_before_they_do():
    world = World()
    world.timed(100, 1e9, 60.0)  # what waited, read at once
    for i in range(5):
        world.wait(60.0)
        world.row(at=1e9 + 60.0 * (100 + i))
    assert world.log == []


@pytest.mark.parametrize("pause_s", [60.0, 86_400.0])
def test_bursts_become_usual_after_two_of_them(pause_s):
    world = World()
    for _ in range(30):
        world.rows(100, every_s=0.01)
        world.wait(pause_s, pause_s / 50.0)
    assert world.log == ["+no data", "-no data"] * 2
    world.wait(2.0 * pause_s, pause_s / 50.0)
    assert world.log[4:] == ["+no data"]


@pytest.mark.slow
def test_two_outages_are_usual_only_for_a_while():
    world = World()
    for _ in range(2):
        world.rows(3600)
        world.wait(600.0)
    world.rows(20_000)
    world.log.clear()
    world.wait(35.0)
    assert world.log == ["+no data"]


# unreadable rows


@pytest.mark.slow
def test_five_rows_in_a_row_that_cannot_be_read_are_a_problem_and_one_in_a_hundred_is_none():
    world = World()
    world.rows(3)
    for _ in range(4):
        world.skip(1)
    assert world.log == []
    world.skip(1)
    assert world.log == ["+unreadable rows"]
    words = world.words("unreadable rows")
    assert words.startswith(
        "63 % of the last rows cannot be read and are skipped, the last: 'x' is"
    )
    assert "`edgemerge doctor` says what to set" in words
    calm = World()
    for _ in range(50):
        calm.rows(99)
        calm.skip(1)
    assert calm.log == []


def test_the_share_is_right_however_many_rows_are_skipped_at_once():
    world = World()
    world.skip(100_000)
    assert "100 %" in world.words("unreadable rows")
    half = World()
    half.skipped = 50_000
    half.why = "a reason"
    half.quality._rows = 50_000
    half.tend()
    assert "50 %" in half.words("unreadable rows")


def test_unreadable_rows_end_when_nearly_all_can_be_read_again():
    world = World()
    world.skip(1000)
    world.rows(400)
    assert world.log == ["+unreadable rows"]
    world.rows(100)
    assert world.log == ["+unreadable rows", "-unreadable rows"]


@pytest.mark.slow
def test_rows_that_are_now_and_then_bad_do_not_flap():
    world = World()
    random = np.random.default_rng(5)
    for _ in range(20_000):  # 4 %, right below what is a problem
        world.skip(1) if random.random() < 0.04 else world.rows(1)
    hours = 20_000 / 3600.0
    assert world.log.count("+unreadable rows") <= 3 * hours


# stuck sensor


def test_an_input_that_stands_still_is_stuck_and_named():
    world = World()
    world.rows(100)
    for _ in range(299):
        world.row(values=[7.5, RNG.normal()])
    assert world.log == []
    for _ in range(2):
        world.row(values=[7.5, RNG.normal()])
    assert world.log == ["+stuck sensor"]
    (problem,) = world.quality.problems
    assert problem.inputs == ("flow",)
    assert problem.words.startswith("flow has not changed for a long time (300 rows at 7.5), and")
    world.rows(4)
    assert world.log == ["+stuck sensor"]
    world.rows(1)
    assert world.log == ["+stuck sensor", "-stuck sensor"]


@pytest.mark.slow
def test_a_glitch_does_not_end_it():
    world = World()
    world.rows(100)
    for _ in range(20):
        for _ in range(400):
            world.row(values=[7.5, RNG.normal()])
        world.rows(1)
    assert world.log == ["+stuck sensor"]


def test_names_come_from_the_source_and_several_are_listed():
    world = World()
    world.rows(50, names=("a", "b"))
    for _ in range(302):
        world.row(values=[1.0, 2.0], names=("a", "b"))
    assert world.quality.problems[0].inputs == ("a", "b")
    assert "a and b have not changed for a long time (301 rows), and did" in (
        world.words("stuck sensor")
    )


@pytest.mark.slow
def test_a_constant_input_and_a_slow_one_are_not_stuck():
    world = World()
    for i in range(5000):
        world.row(values=[1.0, i // 60])  # changes once a minute
    assert world.log == []
    for _ in range(20 * 60 - 61):
        world.row(values=[1.0, -1.0])
    assert world.log == []
    for _ in range(70):
        world.row(values=[1.0, -1.0])
    assert world.log == ["+stuck sensor"]
    assert world.quality.problems[0].inputs == ("heat",)


@pytest.mark.slow
def test_a_standstill_every_night_is_usual_after_two_of_them():
    world = World()
    for _ in range(10):
        world.rows(2000)
        for _ in range(1000):
            world.now += 1.0
            world.row(values=[0.0, 0.0])
    world.rows(4000)  # long enough for a problem that came back
    assert world.log == ["+stuck sensor", "-stuck sensor"] * 2


def test_how_long_a_run_may_be_is_a_setting():
    world = World(stuck_rows=50)
    world.rows(100)
    for _ in range(51):
        world.row(values=[0.0, 0.0])
    assert world.log == ["+stuck sensor"]
    never = World(stuck_rows=0)
    never.rows(100)
    for _ in range(5000):
        never.row(values=[0.0, 0.0])
    assert never.log == []


# gap


@pytest.mark.parametrize(
    ("jump", "words"),
    [
        (3600.0, "jump ahead by 1 h, to 2001-09-09T02:48:20Z: rows are missing, or the clock"),
        (-3600.0, "go back by 1 h, to 2001-09-09T00:48:20Z. Check the clock of what writes"),
    ],
)
def test_a_jump_of_the_times_is_a_gap_until_fifty_rows_are_regular(jump, words):
    world = World()
    world.timed(100, 1e9, 1.0)
    world.timed(50, 1e9 + 100.0 + jump, 1.0)
    assert world.log == ["+gap"]
    assert words in world.words("gap")
    world.timed(2, 1e9 + 150.0 + jump, 1.0)
    assert world.log == ["+gap", "-gap"]


def test_jitter_and_rows_out_of_order_are_no_gap():
    world = World()
    for i in range(1000):
        world.row(at=1e9 + i + RNG.uniform(-3.0, 3.0))
    for i in range(1000):
        world.row(at=1e9 + 1000.0 + i // 10)  # whole seconds, ten rows each
    assert world.log == []


def test_a_file_of_every_night_is_no_gap_after_two_of_them():
    world = World()
    for night in range(10):
        world.timed(200, 1e9 + 86_400.0 * night, 60.0)
    assert world.log.count("+gap") == 2


def test_when_rows_without_times_were_read_tells_of_no_gap_and_no_rate():
    class Undated:
        def read(self, _stop, _position):
            yield from (Reading(RNG.normal(size=2)) for _ in range(600))

    clock = iter([*range(300), *range(4000, 4300)])  # read with a pause, and one a second
    inbox = ReadAhead(Undated(), None, clock=lambda: 1e9 + next(clock))
    world = World(live=False, rate_hz=100.0)
    while not inbox.ended:
        if (reading := inbox.take(1.0)) is not None:
            assert reading.at is not None
            world.quality.row(reading)
            world.tend()
    inbox.close()
    assert inbox.taken == 600
    assert world.log == []


def test_the_first_row_after_a_restart_is_no_gap():
    world = World(rate_hz=1.0)
    world.timed(1, 1e9, 1.0)
    world.timed(1, 1e9 + 2.0, 1.0)
    assert world.log == []


# wrong rate


@pytest.mark.slow
@pytest.mark.parametrize(("step", "found"), [(0.02, "50"), (0.005, "200"), (0.0, "stand still")])
def test_times_at_another_rate_are_noticed_and_end_when_it_is_right(step, found):
    world = World(rate_hz=100.0)
    world.timed(500, 1e9, 0.01)
    assert world.log == []
    world.timed(20_050 if not step else 200, 1e9 + 5.0, step)
    assert world.log == ["+wrong rate"]
    assert found in world.words("wrong rate")
    assert "expected 100 (rate_hz)" in world.words("wrong rate")
    world.timed(200, 1e9 + 5.0 + 200 * step, 0.01)
    assert world.log == ["+wrong rate", "-wrong rate"]


def test_times_in_whole_seconds_have_the_right_rate():
    world = World(rate_hz=10.0)
    for i in range(5000):
        world.row(at=1e9 + i // 10)
    assert world.log == []


def test_rows_without_times_that_arrive_at_half_the_rate_are_noticed():
    world = World(rate_hz=10.0)
    world.rows(1500, every_s=0.1)
    assert world.log == []
    world.rows(1000, every_s=0.2)
    assert world.log == ["+wrong rate"]
    assert "there are 5 rows a second, expected 10" in world.words("wrong rate")
    world.rows(1300, every_s=0.1)
    assert world.log == ["+wrong rate", "-wrong rate"]


def test_rows_in_bursts_have_the_right_rate():
    world = World(rate_hz=10.0)
    for _ in range(60):
        world.wait(10.0)
        for _ in range(100):
            world.row()
    assert world.log == []


def test_rows_that_cannot_be_read_are_no_wrong_rate():
    world = World(rate_hz=10.0)
    for i in range(300):
        world.now += 0.2
        world.skip(1)
        world.row(at=1e9 + 0.2 * i)
    assert world.log == ["+unreadable rows"]


def test_a_pause_is_no_wrong_rate():
    world = World(rate_hz=10.0)
    world.rows(1500, every_s=0.1)
    world.wait(300.0)
    world.rows(1500, every_s=0.1)
    assert world.log == ["+no data", "-no data"]


def test_arrivals_say_nothing_of_a_file_that_is_read_at_once_or_of_no_rate():
    for world in (World(live=False, rate_hz=10.0), World()):
        world.rows(500, every_s=1.0)
        assert world.log == []


# outside range


def test_samples_outside_the_range_are_a_problem_with_words_of_who_judges():
    world = World()
    world.quality.range_words = lambda: ("heat from 80 to 90, expected 0 to 10", ("heat",))
    for i in range(200):
        world.quality.sample(outside=i % 10 == 0)
        world.tend()
    assert world.log == ["+outside range"]
    (problem,) = world.quality.problems
    assert problem.inputs == ("heat",)
    assert "heat from 80 to 90, expected 0 to 10. Check sensor and units" in problem.words
    for _ in range(400):
        world.quality.sample(outside=False)
        world.tend()
    assert world.log == ["+outside range", "-outside range"]


def test_what_keeps_coming_back_lasts_longer_each_time():
    world = World(no_data_s=10.0)
    for _ in range(360):  # an hour of a cable that is loose
        world.rows(1)
        world.wait(19.0)
    hours = 360 * 20 / 3600
    assert world.log.count("+no data") <= 8 * hours


def test_each_problem_is_plain_json_and_has_its_name():
    world = World()
    world.wait(31.0)
    (problem,) = world.quality.problems
    assert set(problem.plain()) == {"name", "since", "words", "inputs"}
    assert problem.name in NAMES
