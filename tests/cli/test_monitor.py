"""`edgemerge monitor`: what it shows of a running agent, and what it has it do."""

import json

import numpy as np
import pytest

from edgemerge.cli import agent
from tests.agent.agents import Running, configured, stream, write_rows
from tests.cli.calls import call, failure
from tests.waiting import until

pytestmark = pytest.mark.slow

FAULT = stream(60, 1) + np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.2])


@pytest.fixture
def config(tmp_path):
    """The configuration of a running agent that has met a fault, which lasts."""
    write_rows(tmp_path / "pump-1.csv", np.vstack([stream(200), FAULT]))
    said = configured(
        tmp_path, "source.kind=tail", "sync.every_s=0", "monitor.limit=30", learn="normal"
    )
    with Running(said) as agent:
        until(lambda: len(agent.listener.verdicts) == 260)
        yield tmp_path / "pump-1.toml"


def shown(config):
    return json.loads(call("monitor", "show", config, "--json").stdout)


def test_episodes_and_patterns_are_shown(config):
    text = call("monitor", "show", config).stdout
    assert "phase              watching" in text
    assert "limit              30 (fixed)" in text
    assert "open" in text
    lines = text.splitlines()
    (pattern,) = [line for line in lines if line.startswith("odd-1")]
    assert "5 ×" in pattern  # the fifth column
    assert "unreviewed" in pattern
    assert "normal" in pattern  # the nearest
    found = shown(config)
    assert found["episodes"][0]["pattern"] == "odd-1"
    assert found["episodes"][0]["inputs"][0][0] == "5"


def test_problems_with_the_data_are_shown_with_what_to_do(tmp_path):
    write_rows(tmp_path / "pump-1.csv", stream(50))
    said = configured(
        tmp_path, "source.kind=tail", "sync.every_s=0", "quality.no_data_s=0.2", "learner.kind=bank"
    )
    with Running(said) as agent:
        until(lambda: len(agent.listener.verdicts) == 50)
        config = tmp_path / "pump-1.toml"
        until(lambda: shown(config)["problems"])
        text = call("monitor", "show", config).stdout
        assert "data               no data\n" in text
        assert "nothing is added to" in text
        assert "Check what writes the data, and [source]." in text


def test_what_was_decided_is_told_and_done(config):
    done = call("monitor", "review", config, "odd-1", "fault", "bearing")
    assert done.stdout == "odd-1 (56 samples) is the fault bearing\n"
    assert shown(config)["patterns"][0]["status"] == "fault"
    undone = json.loads(call("monitor", "review", config, "bearing", "undo", "--json").stdout)
    assert undone == {"done": "bearing (56 samples) waits for a review again, as odd-1"}
    assert call("monitor", "snooze", config, "2 hours").stdout.startswith("no alarm until 20")
    assert "episodes           1" in call("monitor", "show", config).stdout
    assert "raised again" in call("monitor", "snooze", config, "off").stdout
    assert call("monitor", "snooze", config, "--hours", "2").stdout.startswith("no alarm until 20")
    assert "raised again" in call("monitor", "snooze", config, "--hours", "0").stdout
    assert call("monitor", "acknowledge", config, 1).stdout == "episode 1 is acknowledged\n"
    assert shown(config)["episodes"] == []
    assert call("monitor", "acknowledge", config).stdout == "all episodes are acknowledged\n"
    assert "measured from here" in call("monitor", "accept-drift", config).stdout
    assert call("monitor", "relearn", config).exit_code != 0  # without a terminal to ask on
    assert "begins again" in call("monitor", "relearn", config, "--yes").stdout
    assert shown(config)["phase"] == "commissioning"
    assert "commissioning: 0 of 128 samples" in call("monitor", "show", config).stdout


def test_what_cannot_be_done_is_said(config):
    for words, said in (
        (("review", config, "odd-9", "approve"), "no pattern 'odd-9'"),
        (("review", config, "odd-1", "fault"), "a fault needs a NAME"),
        (("review", config, "odd-1", "approve", "x"), "a fault needs a NAME"),
        (("acknowledge", config, 99), "no episode 99"),
        (("snooze", config, "soon"), "2 hours"),
    ):
        assert said in failure(call("monitor", *words), 2)
    assert "found no TIME for snooze" in call("monitor", "snooze", config).stderr


def test_without_an_agent_it_says_how_to_start_one(tmp_path):
    assert "edgemerge agent CONFIG.toml" in failure(call("monitor", "show", tmp_path), 4)


def test_an_agent_with_samples_out_of_range_exits_with_no_data(tmp_path):
    write_rows(tmp_path / "pump-1.csv", 50.0 + stream(120))
    configured(tmp_path, "sync.every_s=0", learn="normal")
    ended = call("agent", tmp_path / "pump-1.toml")
    assert ended.exit_code == 5


KNOWN = {"names": ["bearing"], "device": "pump-1", "first": 1.7e9, "devices": ["pump-1"]}


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"shared": [], "held_back": [], "known": [], "trouble": ""}, "none"),
        (
            {
                "shared": ["leak"],
                "held_back": ["worn: 84 of 128 samples"],
                "known": [KNOWN | {"name": "bearing", "samples": 1147.0}],
                "trouble": "no such fleet",
            },
            "shared leak; held back worn: 84 of 128 samples; "
            "known bearing of pump-1 (1,147 samples); trouble no such fleet",
        ),
    ],
)
def test_the_faults_of_an_exchange_are_told_in_words(faults, words):
    assert agent.fault_words(faults) == words
