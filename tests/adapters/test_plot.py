"""The figures: what they show, into which axes, and that nothing else changes."""

import subprocess
import sys
from io import BytesIO
from zoneinfo import ZoneInfo

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.dates import num2date
from matplotlib.figure import Figure

from edgemerge import plot
from edgemerge.core.errors import SampleError
from edgemerge.core.monitor import Episode

BERLIN = ZoneInfo("Europe/Berlin")
SCORES = np.array([1.0, 0.8, 1.2, 9.0, 90.0, 1.1])
EPISODES = [Episode(1, began=2.5, ended=4.0), Episode(2, began=4.5)]


def spans(axes):
    return [(p.get_x(), p.get_x() + p.get_width()) for p in axes.patches]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_scores_show_the_limit_and_every_episode_once_in_the_legend():
    axes = plot.scores(SCORES, limit=4.0, episodes=EPISODES)
    score, limit = axes.lines
    assert np.array_equal(score.get_ydata(), SCORES)
    assert set(limit.get_ydata()) == {4.0}
    assert spans(axes) == [(2.5, 4.0), (4.5, 5.0)]  # an open one ends with the last sample
    assert legend(axes) == ["score", "limit", "episode"]
    assert (axes.get_yscale(), axes.get_xlabel()) == ("log", "sample")
    assert plot.scores(SCORES[:3]).get_yscale() == "linear"


def test_scores_have_times_as_dates_in_a_zone():
    at = 1_794_000_000.0 + 3600.0 * np.arange(6)
    axes = plot.scores(SCORES, at=at, limit=np.full(6, 5.0), zone=BERLIN)
    axes.figure.canvas.draw()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert "23:00" in labels  # 22:00 in UTC
    assert plot.scores(SCORES, at=at).get_xlabel() == "seconds"
    days = plot.scores(SCORES, at=1_794_000_000.0 + 86_400.0 * np.arange(6), zone=BERLIN)
    assert {tick.hour for tick in num2date(days.get_xticks(), tz=BERLIN)} == {0}  # midnight there


def test_scores_that_are_not_known_yet_leave_a_gap():
    axes = plot.scores([None, None, 1.0, 2.0])
    assert np.isnan(np.asarray(axes.lines[0].get_ydata())[:2]).all()


def test_explanations_show_the_largest_first_and_inputs_that_moved_in_red():
    shares = {f"input {i}": float(i) for i in range(12)}
    axes = plot.explanation(shares, most=3)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("input 11", "input 10", "input 9"),
    ]
    bars = plot.explanation({"a": 50.0, "b": 3.0, "c": 0.01})
    assert bars.get_xscale() == "log"
    colours = [mpl.colors.to_hex(bar.get_facecolor()).upper() for bar in bars.patches]
    assert colours == [plot.RED, plot.BLUE, plot.BLUE]
    assert [end for _start, end in spans(bars)] == pytest.approx([50.0, 3.0, 0.1])


def test_before_and_after_show_medians_of_each_kind():
    before = {"idle": [1.0, 1.0, 2.0], "fast": [40.0, 50.0, 60.0]}
    axes = plot.before_after(before, {"fast": [1.0, 3.0], "idle": [1.0]}, limit=4.0)
    first, second, limit = axes.lines
    assert list(first.get_xdata()) == [1.0, 50.0]
    assert list(second.get_xdata()) == [1.0, 2.0]
    assert set(np.asarray(limit.get_xdata())) == {4.0}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["idle", "fast"]
    assert legend(axes) == ["before", "after", "limit"]


@pytest.mark.slow
def test_everything_is_drawn_into_the_axes_that_are_given_and_no_style_changes():
    settings = dict(mpl.rcParams)
    axes = Figure().subplots(3)
    assert plot.scores(SCORES, ax=axes[0]) is axes[0]
    assert plot.explanation({"a": 1.0}, ax=axes[1]) is axes[1]
    assert plot.before_after({"a": [1.0]}, {"a": [2.0]}, ax=axes[2]) is axes[2]
    axes[0].figure.savefig(file := BytesIO(), format="png")
    assert file.getvalue().startswith(b"\x89PNG")
    assert dict(mpl.rcParams) == settings


@pytest.mark.slow
def test_pyplot_is_not_even_imported():
    code = "import sys; from edgemerge import plot; plot.scores([1.0]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert b"matplotlib.figure" in done.stdout.split()
    assert b"matplotlib.pyplot" not in done.stdout.split()


def test_mistakes_say_what_to_do():
    with pytest.raises(
        SampleError, match=r"found \(2,\) times, expected \(6,\): give one for each"
    ):
        plot.scores(SCORES, at=[1.0, 2.0])
    with pytest.raises(SampleError, match=r"found \(1,\) limits"):
        plot.scores(SCORES, limit=[4.0])
    with pytest.raises(SampleError, match="is the detector warming up"):
        plot.explanation({})
    with pytest.raises(SampleError, match="score the same samples twice"):
        plot.before_after({"a": [1.0]}, {"b": [1.0]})
