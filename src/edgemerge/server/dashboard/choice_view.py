"""Choices as they are shown: what, who, when, and how many devices have followed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgemerge.server.dashboard.saying import counted, named
from edgemerge.server.merges.merging import Choice
from edgemerge.server.reports.glimpses import Glimpse

FRESH_S = 3600.0  # for which it is said who has followed an undoing

Glimpses = Mapping[str, Glimpse]


@dataclass(frozen=True)
class ChoiceView:
    """A choice in words; `state` is "in force", "replaced" or "undone"."""

    number: int
    at: float
    actor: str
    words: str
    state: str
    undone: float | None
    following: str


def choices_of(
    choices: Sequence[Choice], glimpses: Glimpses, devices: Sequence[str], now: float
) -> list[ChoiceView]:
    """Prepare what is shown, newest first as they come; `devices` are those of the fleet."""
    ruled: set[str] = set()  # by newer choices: for these an older one counts no more
    shown = []
    for choice in choices:
        concerned = _concerned(choice, devices, ruled)
        state = _state(choice, concerned)
        since = choice.at if choice.undone is None else choice.undone
        told = bool(concerned) and (state == "in force" or now - since < FRESH_S)
        following = following_words(since, glimpses, concerned) if told else ""
        shown.append(_view(choice, state, following))
        ruled |= set() if choice.undone is not None else set(choice.targets or ())
    return shown


def words_of(choice: Choice) -> str:
    """Say what was chosen."""
    if choice.key is not None:
        return f"{key_words(choice.key)} is told to nobody"
    sources, targets = list(choice.sources or ()), list(choice.targets or ())
    verb = "is" if len(targets) == 1 else "are"
    if not sources or sources == targets == sources[:1]:
        return f"{named(targets)} {verb} told nothing of others"
    if set(sources) == set(targets):
        return f"{named(sources)} are told only each other's sums"
    return f"{named(targets)} {verb} told only the sums of {named(sources)}"


def key_words(key: tuple[str, int, str]) -> str:
    """Name a contribution; the incarnation only if it is not the first.

    >>> key_words(("pump-1", 0, "normal")), key_words(("pump-1", 2, "normal"))
    ('what pump-1 saw of normal', 'what pump-1 saw of normal (incarnation 2)')
    """
    device, incarnation, pattern = key
    return f"what {device} saw of {pattern}" + (f" (incarnation {incarnation})" * (incarnation > 0))


def _concerned(choice: Choice, devices: Sequence[str], ruled: set[str]) -> list[str]:
    if choice.key is None:
        return [name for name in choice.targets or () if name not in ruled]
    return [name for name in devices if name != choice.key[0]]


def _state(choice: Choice, concerned: Sequence[str]) -> str:
    if choice.undone is not None:
        return "undone"
    return "in force" if concerned or choice.key is not None else "replaced"


def _view(choice: Choice, state: str, following: str) -> ChoiceView:
    words = words_of(choice)
    return ChoiceView(
        choice.number, choice.at, choice.actor, words, state, choice.undone, following
    )


def following_words(since: float, glimpses: Glimpses, concerned: Sequence[str]) -> str:
    """Say how many have taken it up since, as far as they report."""
    found = [glimpses.get(name) for name in concerned]
    heard = [glimpse for glimpse in found if glimpse is not None and glimpse.heard > since]
    merged = sum(glimpse.merge is not None and glimpse.merge.at > since for glimpse in heard)
    silent = len(concerned) - len(heard)
    words = [f"{merged:,} of {counted(len(concerned), 'device')} merged anew since"]
    kept = len(heard) - merged
    if kept:
        words.append(f"{kept:,} reported and kept what {'it' if kept == 1 else 'they'} had")
    if silent:
        words.append(f"{silent:,} {'has' if silent == 1 else 'have'} not reported since")
    return "; ".join(words)
