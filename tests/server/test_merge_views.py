"""What the merge page says, without a server: words, steps of colour, and their contrast."""

import re
from pathlib import Path

import numpy as np
import pytest

from edgemerge.server.choices.preview import DeviceSimilarity, PatternPreview
from edgemerge.server.choices.rules import Choice
from edgemerge.server.dashboard import merge as merge_view
from edgemerge.server.dashboard.merge import (
    MAX_PREVIEW_ROWS,
    choice_views,
    describe_adoption,
    describe_choice,
    make_preview_view,
)

STATIC = Path(merge_view.__file__).parent / "static"
ENOUGH = 4.5  # contrast of text, by WCAG 2 AA


def light_of(colour):
    """Give the relative luminance of #rrggbb."""
    parts = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one, other):
    high, low = sorted((light_of(one), light_of(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes():
    """Give the colours of each theme in the stylesheet: light, dark by system, dark by choice."""
    text = (STATIC / "matrix.css").read_text(encoding="utf-8")
    return text, [
        dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in text.split(":root")[1:]
    ]


@pytest.mark.parametrize("theme", [0, 1, 2])
def test_every_step_of_colour_can_be_read(theme):
    text, found = themes()
    for step in range(len(merge_view.COLOUR_STEPS) + 1):
        (ink,) = re.findall(rf"\.m{step}\b[^{{]*{{ color: ([^;]+);", text)
        ink = found[theme].get(ink.removeprefix("var(--").removesuffix(")"), ink)
        assert f".m{step} {{ background: var(--m{step}); }}" in text
        assert contrast(ink, found[theme][f"m{step}"]) >= ENOUGH


def test_both_ways_to_the_dark_theme_give_the_same_colours():
    _, (light, by_system, by_choice) = themes()
    assert by_system == by_choice
    assert set(light) == set(by_system)
    assert light != by_system


def test_the_legend_has_every_step_once_and_in_order():
    matrix = merge_view.Matrix((), 0)
    assert [step for step, _ in matrix.legend] == [f"m{k}" for k in range(12)]
    for (step, words), edge in zip(matrix.legend, (*merge_view.COLOUR_STEPS, 1e9), strict=True):
        assert merge_view.colour_class(edge) == step
        assert float(words.split()[1]) == min(edge, merge_view.COLOUR_STEPS[-1])


def test_what_is_not_known_is_shown_as_such():
    ratios = np.array([[1.0, np.nan], [np.inf, 1.0]])
    likeness = DeviceSimilarity(("a", "b"), ratios, (0, 1), (5.0, 5.0))
    matrix = merge_view.make_matrix(likeness, left_out=0)
    cells = [
        (cell.step, cell.text)
        for group in matrix.groups
        for row in group.rows
        for cell in row.cells
    ]
    assert cells == [("m0", "1.00"), ("none", "–"), ("m11", "> 1M"), ("m0", "1.00")]
    assert [group.words for group in matrix.groups] == ["group 1: 1 device", "group 2: 1 device"]


def previewed(device, shift, *, ready=True):
    return PatternPreview(device, "normal", 100.0, 1.0, 0.9, shift, 50.0, ready)


def preview(*rows):
    return make_preview_view(list(rows), sources=["a"], targets=["a"], to="selected", looked=1)


@pytest.mark.parametrize(
    ("shifts", "kind", "words"),
    [
        ([0.5, 0.4], "good", "Every level falls"),
        ([0.5, 1.2], "good", "No level rises above ×1.2. The most: d1, normal, ×1.20."),
        ([2.0, 1.0], "warn", "Some levels rise, none above ×2. The most: d0"),
        ([2.1, 30.0, 1.0], "bad", "2 of 3 devices would refuse it: d0 and d1. The most: d1"),
    ],
)
def test_a_preview_is_summed_up_in_a_sentence(shifts, kind, words):
    found = preview(*(previewed(f"d{k}", shift) for k, shift in enumerate(shifts)))
    assert found.worst == kind
    assert words in found.summary
    assert [row.preview.shift for row in found.rows] == sorted(shifts, reverse=True)


def test_a_device_without_a_level_is_not_judged():
    found = preview(previewed("young", 9.0, ready=False))
    assert (found.worst, found.rows[0].words) == ("none", "has no level of its own yet")
    assert "None of them has a level" in found.summary
    found = preview(previewed("young", 9.0, ready=False), previewed("old", 0.5))
    assert [row.preview.device for row in found.rows] == ["old", "young"]


def test_the_bar_of_a_preview_is_empty_at_no_change_a_third_at_two_and_full_at_eight():
    found = preview(
        *(previewed(f"d{k}", shift) for k, shift in enumerate((50.0, 8.0, 2.0, 1.0, 0.1)))
    )
    assert [row.bar for row in found.rows] == [100, 100, 33, 0, 0]


def test_a_long_preview_shows_what_rises_most():
    found = preview(*(previewed(f"d{k}", 1.0 + k / 1000) for k in range(MAX_PREVIEW_ROWS + 3)))
    assert (len(found.rows), found.more) == (MAX_PREVIEW_ROWS, 3)
    assert found.rows[0].preview.device == f"d{MAX_PREVIEW_ROWS + 2}"


def test_what_happens_is_said_before_it_does():
    assert describe_adoption(["a"], ["a"], "selected") == "a will adopt nothing from others"
    assert describe_adoption(["a"], ["b"], "all") == "1 device will adopt only the sums of a"
    many = [f"d{k}" for k in range(9)]
    assert describe_adoption(many, many, "selected").startswith(
        "d0, d1, d2, d3, d4, d5 and 3 more will"
    )


def chosen(number, *, sources=None, targets=None, key=None, undone=None):
    kind = "adopt" if key is None else "exclude"
    return Choice(number, 100.0, "operator o", kind, sources, targets, key, undone)


def test_choices_are_said_in_words():
    assert (
        describe_choice(chosen(1, sources=("a",), targets=("a",))) == "a adopts nothing from others"
    )
    assert (
        describe_choice(chosen(1, sources=("a", "b"), targets=("b",)))
        == "b adopts only the sums of a and b"
    )
    assert (
        describe_choice(chosen(1, key=("a", 2, "p")))
        == "what a saw of p (incarnation 2) is excluded"
    )
    nobody = chosen(1, sources=(), targets=("a", "b"))
    assert describe_choice(nobody) == "a and b adopt nothing from others"


def test_a_revocation_concerns_all_others_whatever_was_chosen_since():
    newer = chosen(2, sources=("a",), targets=("a", "b"))
    older = chosen(1, key=("a", 0, "p"))
    views = choice_views([newer, older], {}, ["a", "b", "c"], 200.0)
    assert [view.state for view in views] == ["in force", "in force"]
    assert views[1].following == "0 of 2 devices follow it; 2 have not reported since"


def test_who_followed_an_undoing_is_said_for_an_hour():
    undone = chosen(1, sources=("a",), targets=("a", "b"), undone=150.0)
    (soon,) = choice_views([undone], {}, ["a", "b"], 160.0)
    (later,) = choice_views([undone], {}, ["a", "b"], 160.0 + 3600.0)
    assert soon.following.startswith("0 of 2 devices")
    assert later.following == ""
