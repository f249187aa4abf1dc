"""The page of episodes: what stands where, what it says, and what its forms do."""

import re

import numpy as np
import pytest

from edgemerge.core.errors import UnknownError
from edgemerge.server.dashboard.episodes import CARDS, draw_chart
from edgemerge.server.dashboard.live import EPISODES_REFRESH_S, EpisodeEvents
from edgemerge.server.dashboard.stream import Viewers
from edgemerge.server.main import create_app
from tests.server.reporting import NAMED, monitor, point, report
from tests.server.signing_in import Page
from tests.server.test_episodes import episode, settle, stored
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT

pytestmark = pytest.mark.slow

PAGE = f"/ui/fleets/{FLEET}/episodes"
BAD = "<script>alert(1)</script>\"'"


@pytest.fixture
def world(world):
    world.caller("a")
    return world


def tell(world, *said, device="a", points=(), **changed):
    told = report(world.now, points=points, monitor=monitor(episodes=list(said), **changed))
    world.service.take_report(FLEET, device, told, world.now)
    settle(world.service)


def cards(text):
    """The text of each card, by section and id."""
    found = {}
    for part in text.split('data-section="')[1:]:
        name = part.partition('"')[0]
        articles = re.findall(r'<article.*?data-id="(\d+)".*?</article>', part, re.DOTALL)
        texts = re.findall(r"<article.*?</article>", part, re.DOTALL)
        found[name] = dict(zip(articles, texts, strict=True))
    return found


def words(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def send(world, operator, number, decision, **fields):
    (row,) = [row for row in stored(world) if row.number == number]
    form = {"csrf": operator.csrf(), "decision": decision, **fields}
    return operator.post(f"{PAGE}/{row.id}", form)


def test_open_ones_come_first_then_those_to_acknowledge_then_the_others(world, operator):
    tell(world, *(episode(k, 900.0 + 10 * k, 905.0 + 10 * k) for k in (1, 2)), episode(3, 990.0))
    assert send(world, operator, 1, "acknowledge", episode="1").status_code == 303
    text = operator.get(PAGE).text
    found = cards(text)
    assert list(found) == ["open", "ended", "history"]
    by_number = {row.number: str(row.id) for row in stored(world)}
    assert [list(some) for some in found.values()] == [[by_number[k]] for k in (3, 2, 1)]
    assert "1 open, 1 to acknowledge; 1 device , 1 online" in words(text)


def test_a_card_lists_only_inputs_that_are_unusual(world, operator):
    tell(
        world,
        episode(1, 950.0, inputs=[["bearing_rms", 12.5], ["speed", 0.7]]),
        episode(2, 960.0, inputs=[["speed", 0.7]]),
        episode(3, 970.0, inputs=[]),
    )
    text = " ".join(map(words, cards(operator.get(PAGE).text)["open"].values()))
    assert "speed" not in text
    assert text.count("Most unusual bearing_rms ×12.5") == 1
    assert text.count("Most unusual no single input is unusual") == 1
    assert text.count("Most unusual not reported") == 1


def test_a_card_explains_its_episode_in_plain_words(world, operator):
    tell(world, episode(2, 950.0, peak=33.14, **NAMED))
    (card,) = cards(operator.get(PAGE).text)["open"].values()
    said = words(card)
    assert "open a 33.1 times the usual like bearing" in said
    assert "bearing_rms ×12.5" in said
    assert "speed ×2" in said
    assert NAMED["like"] in said
    assert "score 33.1, limit 4; 60 samples in alarm" in said
    assert "odd-1 unreviewed" in said
    assert "No scores of that time are known" in said


def test_an_ended_episode_says_how_long_it_lasted_and_who_saw_it(world, operator):
    tell(world, episode(1, 900.0, 942.0))
    send(world, operator, 1, "acknowledge", episode="1", comment="the seal")
    (card,) = cards(operator.get(PAGE).text)["history"].values()
    assert "lasted 42 s" in words(card)
    assert "Acknowledged admin root , 1970-01-01T00:16:40Z" in words(card)
    assert "Comment the seal admin root" in words(card)
    assert 'value="acknowledge"' not in card
    assert 'value="comment"' in card


def test_a_device_that_does_not_report_is_named(world, operator):
    tell(world, episode(1, 990.0))
    world.now = 5000.0
    assert "device offline" in words(operator.get(PAGE).text)


def test_a_comment_is_stored_and_one_that_is_too_long_is_refused_on_the_page(world, operator):
    tell(world, episode(1, 990.0))
    assert send(world, operator, 1, "comment", comment="looks worn").status_code == 303
    assert stored(world)[0].comment == "looks worn"
    refused = send(world, operator, 1, "comment", comment="x" * 501)
    assert refused.status_code == 422
    assert "Not done:" in refused.text
    assert stored(world)[0].comment == "looks worn"


@pytest.mark.parametrize(
    ("decision", "fields", "expected"),
    [
        ("approve", {}, "Approve odd-1"),
        ("fault", {"name": "worn bearing"}, "Fault odd-1: worn bearing"),
        ("dismiss", {}, "Dismiss odd-1"),
    ],
)
def test_its_pattern_is_reviewed_right_there(world, operator, decision, fields, expected):
    tell(world, episode(1, 990.0))
    answer = send(world, operator, 1, decision, pattern="odd-1", **fields)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{PAGE}#e{stored(world)[0].id}"
    (made,) = world.service.reviews.list_reviews(FLEET, "a")
    assert (made.decision, made.pattern, made.by) == (decision, "odd-1", "admin root")
    (card,) = cards(operator.get(PAGE).text)["open"].values()
    assert f"waiting: {expected}" in words(card)
    assert 'value="approve"' not in card


def test_a_fault_without_a_name_is_refused_on_the_page(world, operator):
    tell(world, episode(1, 990.0))
    refused = send(world, operator, 1, "fault", pattern="odd-1", name="")
    assert refused.status_code == 422
    assert "name of the fault" in refused.text


def test_a_reviewed_pattern_has_no_form(world, operator):
    patterns = monitor()["patterns"]
    patterns[0]["status"] = "normal"
    tell(world, episode(1, 990.0), patterns=patterns)
    (card,) = cards(operator.get(PAGE).text)["open"].values()
    assert "odd-1 normal" in words(card)
    assert 'value="approve"' not in card


def test_a_form_without_the_token_of_the_session_changes_nothing(world, operator):
    tell(world, episode(1, 990.0))
    (row,) = stored(world)
    form = {"csrf": "0" * 64, "decision": "comment", "comment": "mine"}
    assert operator.post(f"{PAGE}/{row.id}", form).status_code == 403
    stranger = Visitor(create_app(world.service))
    assert stranger.get(PAGE).status_code == 303
    assert stranger.post(f"{PAGE}/{row.id}", form).status_code in (303, 401, 403)
    assert stored(world) == [row]


def test_all_that_ended_are_acknowledged_at_once(world, operator):
    tell(world, *(episode(k, 900.0 + 10 * k, 905.0 + 10 * k) for k in (1, 2)), episode(3, 990.0))
    ((seen, _),) = Page(operator.get(PAGE).text).all("input", id="seen")
    form = {"csrf": operator.csrf(), "seen": seen["value"]}
    assert operator.post(PAGE, form).headers["location"] == PAGE
    assert [row.number for row in stored(world) if row.acknowledged is None] == [3]
    for wrong in ("", "soon", "inf"):
        answer = operator.post(PAGE, form | {"seen": wrong})
        assert answer.status_code == 422
        assert "load the page again" in answer.text


def test_older_ones_are_on_pages_of_their_own(world, operator):
    most = CARDS["ended"]
    for first in range(1, most + 30, 20):
        said = (episode(k, 10.0 * k, 10.0 * k + 5) for k in range(1, first + 20))
        tell(world, *list(said)[-64:])
    everything = [str(row.id) for row in sorted(stored(world), key=lambda row: -row.id)]
    text = operator.get(PAGE).text
    shown = list(cards(text)["ended"])
    assert shown == everything[:most]
    ((link, _),) = Page(text).all("a", rel="next")
    older = operator.get(link["href"].replace("&amp;", "&")).text
    assert list(cards(older)) == ["ended"]
    assert list(cards(older)["ended"]) == everything[most : most + 50]
    form = {"csrf": operator.csrf(), "decision": "comment", "comment": "seen"}
    form |= {"show": "ended", "before": shown[-1]}
    back = operator.post(f"{PAGE}/{everything[-1]}", form).headers["location"]
    assert back == f"{PAGE}?show=ended&before={shown[-1]}#e{everything[-1]}"


def test_only_those_of_one_device_are_shown_if_asked(world, operator):
    world.caller("b")
    for device in ("a", "b"):
        tell(world, episode(1, 990.0), device=device)
    assert len(cards(operator.get(PAGE).text)["open"]) == 2
    (card,) = cards(operator.get(f"{PAGE}?device=b").text)["open"].values()
    assert "Episode 1 of b" in card
    assert len(cards(operator.get(f"{PAGE}?device=%3Cb&show=x&before=y").text)["open"]) == 2


def test_hostile_text_is_text(world, operator):
    inputs = [[BAD, 9.0]]
    names = {"pattern": BAD, "fault": BAD, "like": BAD, "inputs": inputs}
    odd = [{**monitor()["patterns"][0], "name": BAD}]
    tell(world, episode(1, 990.0, **names), patterns=odd)
    send(world, operator, 1, "comment", comment=BAD)
    text = operator.get(PAGE).text
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert") >= 6


def test_an_unknown_fleet_or_episode_is_said(operator):
    assert operator.get("/ui/fleets/nowhere/episodes").status_code == 404
    form = {"csrf": operator.csrf(), "decision": "acknowledge", "episode": "1"}
    assert operator.post(f"{PAGE}/99", form).status_code == 404


def test_the_first_page_of_the_only_fleet_is_that_of_its_episodes(world, operator):
    assert operator.get("/ui/").headers["location"] == PAGE
    world.service.revoke(FLEET, "a", ROOT)
    assert operator.get("/ui/").headers["location"] == f"/ui/fleets/{FLEET}"


# The chart.


def a_row(world, **changed):
    tell(world, episode(1, world.now - 20.0, **changed))
    return stored(world)[0]


def table(*scores, first=960.0, limit=4.0):
    rows = [(first + k, s, limit, s > limit) for k, s in enumerate(scores)]
    return np.array(rows, float)


def test_the_chart_shows_the_limit_the_alarms_and_when_it_was_open(world):
    drawn = draw_chart(table(*[1.0] * 30, *[20.0] * 11), a_row(world))
    assert drawn.curve.startswith("M22 ")
    assert drawn.curve.count("L") == 40
    assert drawn.alarms.count("M") == 11
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", drawn.curve)]
    assert heights[-1] < drawn.limit < heights[0]
    x, width = drawn.episode
    assert x + width == pytest.approx(316.0, abs=0.2)  # to the end: it is open
    assert (drawn.first, drawn.last) == (960.0, 1000.0)
    assert drawn.words == "Scores around it: highest 20, limit 4"
    assert [label.words for label in drawn.labels] == ["1", "10"]


def test_a_gap_in_the_scores_breaks_the_line(world):
    rows = np.vstack([table(1.0, 1.0, 1.0), table(9.0, 9.0, first=990.0)])
    assert draw_chart(rows, a_row(world)).curve.count("M") == 2


def test_odd_scores_stay_in_the_picture(world):
    drawn = draw_chart(table(0.0, 1e300, 1.0, limit=np.nan), a_row(world))
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", drawn.curve)]
    assert all(0.0 <= y <= 96.0 for y in heights)
    assert draw_chart(table(1.0), a_row(world)) is None


def test_the_chart_of_an_open_episode_follows_the_scores(world, operator):
    scores = [point(960.0 + k, 9.0, 4.0, True) for k in range(40)]
    tell(world, episode(1, 980.0), points=scores)
    before = operator.get(PAGE).text
    assert "1970-01-01T00:16:39Z" in before  # its last score
    world.now = 1010.0
    tell(world, episode(1, 980.0), points=[point(1009.0, 9.0, 4.0, True)])
    assert "1970-01-01T00:16:49Z" in operator.get(PAGE).text


# The stream.


def events(world, last_id=""):
    app = create_app(world.service)
    operator = Visitor(app)
    operator.sign_in(world.operator_token)
    text = operator.get(PAGE).text
    tables = app.state.viewers.tables
    csrf = re.findall(r'name="csrf" value="(\w+)"', text)[-1]
    seen = re.findall(r'data-since="(\w+)"', text)[0]
    viewers = Viewers(tables)
    return EpisodeEvents(world.service, viewers, FLEET, last_id or seen, csrf=csrf)


def test_the_stream_sends_what_is_not_on_the_page_yet(world):
    tell(world, episode(1, 900.0, 950.0))
    stream = events(world)
    assert stream.poll() is None  # the page has it
    world.caller("b")
    world.now += EPISODES_REFRESH_S + 3.0
    tell(world, episode(1, 990.0), device="b")
    told = stream.poll().data
    (begun,) = [str(row.id) for row in stored(world) if row.device == "b"]
    assert told["begun"] == ["b"]
    assert list(told["cards"]) == [begun]
    assert told["sections"]["open"] == [begun]
    assert told["counts"] == {"open": 1, "ended": 1}
    world.now += 0.1
    assert stream.poll() is None  # not so soon


def test_a_client_that_saw_something_else_gets_everything(world):
    tell(world, episode(1, 900.0, 950.0))
    told = events(world, "other").poll().data
    assert len(told["cards"]) == 1
    assert told["begun"] == []


def test_the_stream_of_a_fleet_that_is_gone_ends(world):
    stream = events(world)
    world.service.delete(FLEET, ROOT)
    world.now += 10.0
    with pytest.raises(UnknownError):
        stream.poll()
