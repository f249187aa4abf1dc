"""The pages of all fleets and of one: what stands in them, in which order, and nothing runs."""

import re
from dataclasses import replace
from itertools import pairwise
from time import process_time

import pytest

from edgemerge.core.errors import UnknownError
from edgemerge.server.auth import hash_token
from edgemerge.server.dashboard import fleet_table as drawing
from edgemerge.server.dashboard.fleet_table import (
    SORT_KEYS,
    DeviceRow,
    FleetTable,
    FleetTables,
    Sparkline,
    fleet_totals,
    is_in_alarm,
    matches,
    score_height,
    sort_rows,
    sparkline,
)
from edgemerge.server.dashboard.pages import STATIC_DIR
from edgemerge.server.fleets import Fleet
from edgemerge.server.main import create_app
from edgemerge.server.reports.model import ScorePoint, Traffic
from tests.server.reporting import alarm_of, merge_of, monitor, point, report
from tests.server.signing_in import Page
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT, generator, note

pytestmark = pytest.mark.slow

PAGE = f"/ui/fleets/{FLEET}"
CELLS = ("state", "alarm", "pattern", "learnt", "score")
BAD = "<script>alert(1)</script>\"'\u202egnp.exe&amp;"
RENDERED_S = 0.25  # for a thousand devices
SLACK = 3.0  # for a machine that is busy or slow


def let_in(world, *devices):
    for device in devices:
        world.caller(device)


def take(world, device, **words):
    world.service.history.take(FLEET, device, report(world.now, **words), world.now)


def shown(operator, path=PAGE):
    answer = operator.get(path)
    assert answer.status_code == 200, answer.text
    return Page(answer.text)


def cells(page, device):
    """The texts of the row of a device, by column."""
    rows = re.split(r"(?=<tr role=\"row\")", page)
    (row,) = [Page(row) for row in rows if f'devices/{device}"' in row]
    return {name: text_of(row, f"c-{name}") for name in CELLS}


def exchanged(operator, device):
    """What the page of exchanges says of a device, by the labels of its cells."""
    text = operator.get(f"{PAGE}/exchange").text
    (row,) = [row for row in text.split("<tr>") if f'devices/{device}"' in row]
    return {a["data-label"]: words for a, words in Page(row).all("td")}


def text_of(row, name):
    ((_attributes, text),) = [e for e in row.all("td") if name in e[0]["class"].split()]
    return text


def order_of(page):
    return [text for _, text in page.all("th", scope="row") if text]


def make_fleet(world, name):
    world.service.create(
        Fleet(name, world.fleet.projection_bytes, "totals", 1, False, 0, 0.0), ROOT
    )


def test_a_stranger_sees_no_fleet(world):
    stranger = Visitor(create_app(world.service))
    for path in ("/ui/", PAGE, f"{PAGE}/devices/pump-1"):
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers["location"][:11]) == (303, "/ui/sign-in")
        assert FLEET not in answer.text


def test_the_only_fleet_is_shown_at_once(operator):
    assert operator.get("/ui/").headers["location"] == PAGE


def test_without_a_fleet_the_page_says_how_to_make_one(world, operator):
    world.service.delete(FLEET, ROOT)
    (words,) = shown(operator, "/ui/").all("pre")
    assert words[1].startswith("edgemerge fleet create pumps --n-inputs 4")
    assert "--server http://hub:8470 " in words[1]


def test_several_fleets_are_cards(world, operator):
    make_fleet(world, "fans")
    world.put(note("pump-1", 1, generator(0), rows=30))
    take(world, "pump-1", alarms=[alarm_of(world.now)], learnt=12_345.0)
    let_in(world, "pump-2")
    page = shown(operator, "/ui/")
    fans, pumps = (text for attributes, text in page.all("li") if "card" in attributes["class"])
    assert "fans no alarm now" in fans
    assert "Devices none yet" in fans
    assert "Last share never" in fans
    assert "1 in alarm" in pumps
    assert "1 online, 1 offline" in pumps
    assert "12.3 k samples" in pumps
    assert "Last share 1970-01-01T00:16:40Z" in pumps


def test_a_row_says_all_that_is_known_of_a_device(world, operator):
    world.put(note("pump-1", 3, generator(0)))
    world.now = 1100.0
    points = [point(1098.0, 1.0, 4.0), point(1099.0, 1.0234, 4.0)]
    take(
        world,
        "pump-1",
        points=points,
        merge=merge_of(1050.0),
        pattern="idle",
        learnt=2_500.0,
        revision=7,
    )
    found = cells(operator.get(PAGE).text, "pump-1")
    assert found == {
        "state": "online",
        "alarm": "never",
        "pattern": "idle",
        "learnt": "2.5 k",
        "score": "1.02 / 4",
    }
    assert exchanged(operator, "pump-1") == {
        "learnt": "2.5 k",
        "revision": "7",
        "incarnation": "0",
        "last share": "1970-01-01T00:16:40Z",
        "last merge": "1970-01-01T00:17:30Z",
        "pushed": "0 B in 0",
        "pulled": "0 B in 0",
    }


def test_a_device_that_never_reported_is_known_by_what_it_shared(world, operator):
    world.put(note("pump-1", 3, generator(0), rows=30))
    let_in(world, "pump-2")
    text = operator.get(PAGE).text
    shared, silent = cells(text, "pump-1"), cells(text, "pump-2")
    assert [shared[name] for name in ("state", "learnt", "score")] == ["quiet", "30", "– / –"]
    assert list(silent.values()) == ["offline", "never", "–", "0", "– / –"]
    assert exchanged(operator, "pump-1")["revision"] == "3"
    nothing = ["0", "–", "–", "never", "never", "0 B in 0", "0 B in 0"]
    assert list(exchanged(operator, "pump-2").values()) == nothing


def test_states_change_by_time_alone(world, operator):
    let_in(world, "pump-1")
    take(world, "pump-1")
    seen = []
    for now in (1010.0, 1031.0, 1301.0):
        world.now = now
        seen.append(cells(operator.get(PAGE).text, "pump-1")["state"])
    world.service.revoke(FLEET, "pump-1", ROOT)
    seen.append(cells(operator.get(PAGE).text, "pump-1")["state"])
    assert seen == ["online", "quiet", "offline", "revoked"]


PROBLEM = {"name": "no data", "since": 990.0, "words": "no usable row for 31 s: check the cable"}


def test_a_device_whose_data_are_wrong_shows_the_problem_and_not_online(world, operator):
    for name in ("pump-1", "pump-2", "pump-3"):
        let_in(world, name)
    take(world, "pump-1", problems=[PROBLEM, PROBLEM | {"name": "stuck sensor"}])
    take(world, "pump-2", samples=0)
    take(world, "pump-3")
    page = operator.get(PAGE).text
    shown = [cells(page, f"pump-{i}")["state"] for i in (1, 2, 3)]
    assert shown == ["no data +1", "no sample yet", "online"]
    assert '<span class="state" data-state="problem">no data +1</span>' in page
    assert "1 online, 2 problem" in page
    assert "1 online, 2 with a problem</p>" in operator.get(f"{PAGE}/episodes").text
    assert "pump-1" in operator.get(f"{PAGE}?q=stuck").text
    device = operator.get(f"{PAGE}/devices/pump-1").text
    assert '<span class="state" data-state="problem">no data +1</span>' in device
    assert "no usable row for 31 s: check the cable" in device
    world.now += 60.0
    assert cells(operator.get(PAGE).text, "pump-1")["state"] == "quiet"
    assert "check the cable" not in operator.get(f"{PAGE}/devices/pump-1").text


def test_a_report_keeps_a_bounded_number_of_problems_by_the_servers_clock(world):
    let_in(world, "pump-1")
    told = report(900.0, problems=[PROBLEM | {"more": 1}] * 100)
    world.service.history.take(FLEET, "pump-1", told, 1000.0)
    found = world.service.history.latest(FLEET, "pump-1").status.problems
    assert len(found) == 16
    assert found[0].since == 1090.0
    assert report(900.0).status.problems == []


def test_a_device_that_pulls_is_not_offline(world, operator):
    let_in(world, "pump-1")
    world.service.history.pulled(FLEET, "pump-1", 10, grouped=False)
    assert cells(operator.get(PAGE).text, "pump-1")["state"] == "quiet"


def test_an_alarm_is_one_of_now_for_a_minute(world, operator):
    let_in(world, "pump-1")
    take(world, "pump-1", points=[point(1000.0, 9.0, 4.0, True)], alarms=[alarm_of(1000.0)])
    now = operator.get(PAGE).text
    assert cells(now, "pump-1")["alarm"] == "alarm 1970-01-01T00:16:40Z"
    assert Page(now).text("span", data_total="alarms") == "1"
    world.now = 1059.0
    assert cells(operator.get(PAGE).text, "pump-1")["alarm"].startswith("alarm")
    world.now = 1061.0
    later = operator.get(PAGE).text
    assert cells(later, "pump-1")["alarm"] == "1970-01-01T00:16:40Z"
    assert Page(later).text("span", data_total="alarms") == "0"


def test_a_device_in_alarm_shows_no_harmless_number(world, operator):
    let_in(world, "a", "b")
    quiet = [point(999.0, 1.1, 4.0)]
    opened = monitor()["episodes"][1]
    take(world, "b", points=quiet, monitor=monitor(episodes=[opened]))
    take(world, "a", points=quiet, alarms=[alarm_of(990.0, score=5.0)])
    text = operator.get(PAGE).text
    assert cells(text, "b")["score"] == "peak 33 / 4"
    assert cells(text, "a")["score"] == "peak 5 / 4"
    assert text.count('<span class="above">peak') == 2
    world.now = 1061.0
    assert cells(operator.get(PAGE).text, "a")["score"] == "1.1 / 4"
    rows = FleetTable(FLEET, world.service.database, world.service.history).look(world.now).rows
    assert [row.device for row in sort_rows(rows, "-score")] == ["b", "a"]


def test_an_alarm_that_has_just_ended_shows_the_peak_of_its_episode(world, operator):
    let_in(world, "a", "b")
    weak = alarm_of(999.0, score=5.0) | {"episode": 2}
    old, new = monitor()["episodes"]
    new["ended"], old["peak"] = 999.5, 70.0
    take(world, "a", alarms=[weak], monitor=monitor(episodes=[old, new]))
    take(world, "b", alarms=[weak], monitor=monitor(episodes=[old]))  # 2 was acknowledged
    text = operator.get(PAGE).text
    assert cells(text, "a")["score"].startswith("peak 33 /")
    assert cells(text, "b")["score"].startswith("peak 5 /")


def test_an_alarm_of_a_device_that_reports_seldom_lasts_for_two_reports(world):
    let_in(world, "a")
    take(world, "a", alarms=[alarm_of(1000.0)])
    glimpse = replace(world.service.history.latest(FLEET, "a"), every_s=100.0)
    found = [is_in_alarm(glimpse, "online", now) for now in (1061.0, 1199.0, 1201.0)]
    assert found == [True, True, False]


@pytest.mark.slow
def test_what_a_device_does_not_say_the_server_knows(world, operator):
    world.put(note("a", 3, generator(0)))
    world.put(note("b", 4, generator(0)))
    world.drop("b")
    take(world, "a", revision=0)
    assert exchanged(operator, "a")["revision"] == "3"
    assert exchanged(operator, "b")["revision"] == "–"
    # it did, though it was dropped
    assert exchanged(operator, "b")["last share"] == "1970-01-01T00:16:40Z"


@pytest.mark.slow
def test_a_revoked_device_is_in_no_alarm(world, operator):
    let_in(world, "pump-1")
    take(world, "pump-1", alarms=[alarm_of(1000.0)])
    world.service.revoke(FLEET, "pump-1", ROOT)
    assert cells(operator.get(PAGE).text, "pump-1")["alarm"] == "1970-01-01T00:16:40Z"


def test_alarms_come_first_then_names(world, operator):
    let_in(world, "d", "b", "c", "a")
    for device in ("d", "c"):
        take(world, device, alarms=[alarm_of(1000.0 if device == "d" else 999.0)])
    assert order_of(shown(operator)) == ["c", "d", "a", "b"]


def a_row(device, **words):
    nothing = dict.fromkeys(("alarmed", "pattern", "revision", "shared", "merged", "score"))
    known = {"state": "online", "alarm": False, "learnt": 0.0, "threshold": None, "spark": None}
    return DeviceRow(**{"device": device, **nothing, **known, **words})


@pytest.mark.parametrize(
    ("column", "low", "high"),
    [
        ("state", "online", "offline"),
        ("alarm", 5.0, 7.0),
        ("pattern", "fast", "idle"),
        ("learnt", 5.0, 7.0),
        ("score", 5.0, 7.0),
    ],
)
def test_rows_are_sorted_by_any_column_and_the_unknown_come_last(column, low, high):
    field = {"alarm": "alarmed"}.get(column, column)
    rows = [a_row("z", **{field: high}), a_row("b", **{field: low}), a_row("a", **{field: low})]
    unknown = [] if column in ("state", "learnt") else [a_row("0")]
    rising = [row.device for row in sort_rows(unknown + rows, column)]
    falling = [row.device for row in sort_rows(unknown + rows, f"-{column}")]
    last = ["0"] * len(unknown)
    assert rising == ["a", "b", "z", *last]
    assert falling == ["z", "a", "b", *last]


def test_the_order_can_be_asked_for_and_its_column_says_so(world, operator):
    let_in(world, "a", "b")
    take(world, "a", learnt=5.0)
    take(world, "b", learnt=9.0)
    page = shown(operator, f"{PAGE}?sort=-learnt")
    assert order_of(page) == ["b", "a"]
    heads = page.all("th", aria_sort="descending")
    assert [text for _, text in heads] == ["Learnt"]
    assert page.all("th", aria_sort="ascending") == []
    assert [a["value"] for a, _ in page.all("option") if "selected" in a] == ["-learnt"]
    values = {a["data-name"]: a["value"] for a, _ in page.all("button", name="sort")}
    assert values.keys() == SORT_KEYS.keys()
    assert (values["learnt"], values["score"], values["device"]) == ("learnt", "-score", "device")
    assert order_of(shown(operator, f"{PAGE}?sort=nonsense")) == ["a", "b"]


def test_a_search_hides_what_does_not_match_and_counts(world, operator):
    let_in(world, "pump-1", "pump-2", "fan-1")
    take(world, "pump-1", pattern="Idle")
    page = shown(operator, f"{PAGE}?q=PUMP+idle")
    rows = [
        attributes for attributes, text in page.all("tr") if "–" in text and "Device" not in text
    ]
    assert sum("hidden" in attributes for attributes in rows) == 2
    assert page.text("output", id="count") == "1 of 3 devices"
    assert page.all("input", id="q")[0][0]["value"] == "PUMP idle"
    assert "hidden" in page.all("p", id="none")[0][0]
    assert "hidden" not in shown(operator, f"{PAGE}?q=nowhere").all("p", id="none")[0][0]


def test_words_are_looked_for_in_name_state_pattern_and_alarm():
    row = a_row("Pump-1", pattern="fast", state="quiet", alarm=True)
    assert all(matches(row, q) for q in ("", "pump", "FAST", "quiet 1", "alarm p"))
    assert not any(matches(row, q) for q in ("pump-2", "quiet idle", "online"))
    assert not matches(a_row("Pump-1"), "alarm")


def test_totals_add_up(world, operator):
    let_in(world, "a", "b", "c")
    take(world, "a", learnt=1_000_000.0, merge=merge_of(999.0))
    take(world, "b", learnt=500_000.0)
    world.service.revoke(FLEET, "c", ROOT)
    world.service.history.pushed(FLEET, "a", 1_000_000)
    world.service.history.pulled(FLEET, "b", 1_000_000, grouped=False)
    page = shown(operator)
    total = {a["data-total"]: text for a, text in page.all("span") if "data-total" in a}
    assert total["devices"] == "2"
    assert total["states"] == "2 online, 1 revoked"
    assert total["samples"] == "1.5 M"
    facts = shown(operator, f"{PAGE}/exchange").text("dl")
    assert "Merges 1 as devices report" in facts
    # 1.5 M samples × 6 inputs × 8 bytes, less 2 MB
    assert "Saved by sharing sums 70 MB 72 MB as rows, 2 MB shared" in facts
    assert exchanged(operator, "a")["pushed"] == "1 MB in 1"


def test_what_sharing_cost_is_said_honestly():
    found = fleet_totals([a_row("a", learnt=10.0)], 4, [Traffic(1, 1_320, 1, 500)], 0)
    assert found.saved == 10 * 4 * 8 - 1_820
    assert found.words()["saved"] == "−1.5 kB"
    assert found.words()["counted"] == "320 B as rows, 1.82 kB shared: so far sharing took more"
    assert fleet_totals([], 4, [], 0).words()["saved"] == "–"
    before = fleet_totals([a_row("a", learnt=10.0)], 4, [], 0).words()
    assert (before["saved"], before["counted"]) == ("–", "nothing was shared yet")


def test_a_sparkline_shows_usual_and_odd_scores_apart():
    usual, limit, odd = score_height(1.0), score_height(4.0), score_height(50.0)
    assert usual - limit >= 4
    assert limit - odd >= 4
    assert score_height(0.0) == score_height(1e-9) == drawing.HEIGHT - drawing.MARGIN
    assert score_height(1e300) == drawing.MARGIN


def test_a_sparkline_ends_at_the_right_with_line_and_marks():
    points = [ScorePoint(float(i), 1.0, 4.0, False) for i in range(100)]
    points[-1] = ScorePoint(100.0, 50.0, 4.0, True)
    drawn = sparkline(points)
    assert len(drawn.heights) == drawing.MAX_SPARK_POINTS
    assert drawn.line == f"M0 {score_height(4.0)}H120"
    assert drawn.dots == f"M118 {score_height(50.0)}h0"
    assert drawn.curve.startswith(f"M0 {score_height(1.0)}l0 0 2 0 2 0")
    assert ends(drawn.curve) == (118, score_height(50.0))
    assert sparkline([]) == Sparkline()
    assert (Sparkline().curve, Sparkline().line, Sparkline().dots) == ("", "", "")


def ends(curve):
    start, _, steps = curve.removeprefix("M").partition("l")
    x, y = map(int, start.split())
    moves = list(map(int, steps.split()))
    return x + sum(moves[::2]), y + sum(moves[1::2])


def test_the_script_draws_as_the_server_does(world):
    script = (STATIC_DIR / "cells.js").read_text(encoding="utf-8")
    for name in ("WIDTH", "MARGIN", "STEP"):
        assert re.search(rf"const {name} = {getattr(drawing, name)};", script)
    fields = re.findall(r'"(\w+)"', script.partition("FIELDS = [")[2].partition("]")[0])
    assert len(fields) == len(a_row("a", spark=Sparkline()).event())
    let_in(world, "a")
    take(world, "a", points=[point(999.0, 7.0, 4.0, True)], alarms=[alarm_of(999.0)], pattern="p")
    (row,) = FleetTable(FLEET, world.service.database, world.service.history).look(world.now).rows
    told = dict(zip(fields, row.event(), strict=True))
    assert told["device"] == "a"
    assert (told["alarm"], told["alarmed"], told["pattern"]) == (1, 999.0, "p")
    assert (told["learntText"], told["learnt"]) == ("9.5", 9.5)
    assert (told["scoreText"], told["thresholdText"], told["above"]) == ("peak 7", "4", 1)
    assert (told["heights"], told["threshold"]) == ((score_height(7.0),), score_height(4.0))
    assert told["alarms"] == (0,)


def test_a_board_tells_what_changed_since_a_mark(world):
    board = FleetTable(FLEET, world.service.database, world.service.history)
    let_in(world, "a", "b")
    first = board.look(world.now)
    assert [row.device for row in first.rows] == ["a", "b"]
    world.now += 1.0
    take(world, "b")
    second = board.look(world.now, since=first.event_id)
    assert [row.device for row in second.rows] == ["b"]
    world.now += 1.0
    assert board.look(world.now, since=second.event_id).rows == []
    let_in(world, "c")
    world.now += 3.0
    assert [row.device for row in board.look(world.now, since=second.event_id).rows] == ["c"]


def test_who_saw_another_run_is_sent_everything(world):
    let_in(world, "a", "b")
    before = (
        FleetTable(FLEET, world.service.database, world.service.history).look(world.now).event_id
    )
    board = FleetTable(FLEET, world.service.database, world.service.history)
    board.look(world.now)
    for mark in (before, "", "nonsense", f"{before.partition('-')[0]}-x", "-"):
        assert len(board.look(world.now, since=mark).rows) == 2


def test_looks_close_together_are_one(world):
    let_in(world, "a")
    boards = FleetTables(world.service.database, world.service.history, lambda: world.now)
    mark = boards.look(FLEET).event_id
    take(world, "a", learnt=77.0)
    world.now += 0.1
    assert boards.look(FLEET, since=mark).rows == []
    world.now += 0.4
    assert [row.learnt for row in boards.look(FLEET, since=mark).rows] == [77.0]


def test_a_fleet_that_was_deleted_is_forgotten(world):
    boards = FleetTables(world.service.database, world.service.history, lambda: world.now)
    let_in(world, "a")
    boards.look(FLEET)
    world.service.delete(FLEET, ROOT)
    with pytest.raises(UnknownError, match="no fleet"):
        boards.look(FLEET, database_s=0.0)
    world.service.create(world.fleet, ROOT)
    assert boards.look(FLEET).rows == []


def test_a_fleet_that_was_made_anew_has_only_its_own_devices(world):
    board = FleetTable(FLEET, world.service.database, world.service.history)
    let_in(world, "a")
    board.look(world.now)
    world.service.delete(FLEET, ROOT)
    world.tokens.clear()
    world.service.create(world.fleet, ROOT)
    let_in(world, "b")
    world.now += 9.0
    assert [row.device for row in board.look(world.now).rows] == ["b"]


def test_a_fleet_that_is_not_there_is_a_page_of_its_own(operator):
    answer = operator.get("/ui/fleets/nowhere")
    assert answer.status_code == 404
    assert "an admin creates one" in answer.text


def test_without_a_device_the_page_says_what_to_run(operator):
    page = shown(operator)
    assert "No device yet: run this line on one" in page.text("section")
    lines = [text for _, text in page.all("pre")]
    assert lines[0].startswith(f"edgemerge fleet invite {FLEET} pump-1 --out invitation")
    assert lines[1].startswith(f"edgemerge enrol http://hub:8470 {FLEET} pump-1")
    assert f'fleet = "{FLEET}"' in lines[2]
    assert page.all("table") == []


def test_hostile_text_is_text(world, operator):
    let_in(world, "a")
    take(world, "a", pattern=BAD)
    answer = operator.get(f"{PAGE}?q=" + "%3Cscript%3Ealert(2)%3C/script%3E%22")
    page = Page(answer.text)
    assert page.scripts() == []
    assert "alert(1)</script>" not in answer.text
    assert cells(answer.text, "a")["pattern"] == BAD
    assert page.all("input", id="q")[0][0]["value"] == '<script>alert(2)</script>"'


def test_long_names_are_there_in_full_as_a_hint(world, operator):
    name = "n" * 100
    let_in(world, name)
    take(world, name, pattern="p" * 200)
    page = shown(operator)
    assert page.all("a", title=name)
    assert page.all("span", title="p" * 200)


def test_the_table_can_be_understood_without_seeing_it(world, operator):
    let_in(world, "a")
    page = shown(operator)
    assert "Devices of" in page.text("caption")
    assert len(page.all("th", scope="col")) == 8
    assert page.all("label", for_="sort")
    assert page.all("input", aria_label="Search devices")
    labels = [a["data-label"] for a, _ in page.all("td") if "data-label" in a]
    assert labels[:7] == labels[7:]  # and once more in the pattern of a new row
    assert page.all("p", role="status", id="announced")


def test_a_page_never_asks_for_more_than_it_has(world, operator):
    let_in(world, "a")
    text = operator.get(PAGE).text
    assert "style=" not in text
    for address in re.findall(r'(?:src|href)="([^"]*)"', text):
        assert address.startswith(("/ui/", "#")), address


def test_scripts_are_small_files_with_a_word_on_top():
    for path in [*STATIC_DIR.glob("*.js"), *STATIC_DIR.glob("*.css")]:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith(("//", "/*")), path.name
        assert len(lines) <= 400, path.name
        assert "innerHTML" not in "".join(lines), path.name


def test_a_module_imports_files_that_are_there():
    for path in STATIC_DIR.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', path.read_text(encoding="utf-8")):
            assert (STATIC_DIR / name).is_file(), (path.name, name)


@pytest.mark.slow
def test_a_thousand_devices_are_a_page_in_a_quarter_of_a_second(world, operator):
    def change(tx):
        sql = "insert into devices (fleet, device, token_hash, enrolled) values (?, ?, ?, ?)"
        for i in range(1000):
            tx.run(sql, FLEET, f"pump-{i:03}", hash_token(str(i)), 0.0)

    world.service.writer.write(change)
    points = [point(900.0 + i, 1.0 + i % 7, 4.0) for i in range(60)]
    for i in range(1000):
        take(world, f"pump-{i:03}", points=points, pattern="idle", learnt=float(i))
    spent = []
    for _ in range(3):
        start = process_time()
        page = operator.get(PAGE)
        spent.append(process_time() - start)
    names = re.findall(r'title="(pump-\d+)"', page.text)
    assert len(names) == 1000
    assert all(left < right for left, right in pairwise(names))
    assert min(spent) < RENDERED_S * SLACK, spent
