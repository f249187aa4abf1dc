"""The configuration: what goes over what, what is refused in which words, what is built of it."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from edgemerge import Projection, save
from edgemerge.agent import factory
from edgemerge.agent.config import (
    TABLES,
    Config,
    ExchangeConfig,
    MonitorConfig,
    SinkConfig,
    TopLevelConfig,
    read_config,
)
from edgemerge.core.detector import Detector
from edgemerge.core.errors import SettingError
from tests.agent.configuring import SHARED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "agent-configuration.md"


def test_flags_go_over_the_environment_and_that_over_the_file(configured):
    text = SHARED + "[sync]\nevery_s = 1\njitter = 0.2\n[save]\nevery = 7\n"
    environment = {"EDGEMERGE_SYNC__EVERY_S": "2", "EDGEMERGE_SYNC__JITTER": "0.3"}
    config = configured(text, "sync.every_s=3", environment=environment)
    assert (config.sync.every_s, config.sync.jitter, config.save.every) == (3.0, 0.3, 7)
    assert config.save.every_s == 10.0


def test_what_is_not_ours_in_the_environment_is_left_alone(configured):
    names = ["EDGEMERGE_DATA", "EDGEMERGE_FAILPOINT", "EDGEMERGE", "OTHER__KEY"]
    assert configured(environment=dict.fromkeys(names, "x")) == configured()


def test_device_and_state_can_be_told_from_outside(configured, tmp_path):
    environment = {"EDGEMERGE_DEVICE": "pump-4"}
    config = configured(SHARED, "state=elsewhere", environment=environment, head="")
    assert (config.device, config.state) == ("pump-4", tmp_path / "elsewhere")


def test_paths_are_relative_to_the_file(configured, tmp_path):
    text = SHARED + '[source]\nkind = "csv"\npath = "in.csv"\n[[sinks]]\npath = "-"\n'
    config = configured(text, "exchange.ca_file=/etc/ca.pem")
    assert config.state == tmp_path / "state" / "pump-3"
    assert config.source.path == tmp_path / "in.csv"
    assert config.exchange.ca_file == Path("/etc/ca.pem")
    assert config.sinks[0].path == Path("-")


def test_values_of_flags_are_read_as_the_key_needs_them(configured):
    config = configured(
        SHARED,
        "source.columns=x, 2, y",
        'source.time=["Date", "Time, s"]',
        'sync.devices=["a,b", "c"]',
        "monitor.votes=2,3",
        "exchange.username=123",
        "sync.push=false",
        "learner.reject_above=never",
        "sinks.0.kind=file",
        "sinks.1.scores_per_s=5",
    )
    assert config.source.columns == ("x", 2, "y")
    assert config.source.time == ("Date", "Time, s")
    assert configured(SHARED, "source.time=Time, s").source.time == "Time, s"
    assert config.sync.devices == ("a,b", "c")
    assert config.monitor.votes == (2, 3)
    assert config.exchange.username == "123"
    assert config.sync.push is False
    assert config.learner.reject_above == "never"
    assert config.sinks == (SinkConfig(kind="file"), SinkConfig(scores_per_s=5.0))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sync.evry_s=3", r"'sync\.evry_s' in the environment or a flag\. .*'sync\.every_s'\?"),
        ("exchange.token=abc", r"Did you mean 'exchange\.token_file'\?"),
        ("snc.every_s=3", r"^Unknown key 'snc' in agent\.toml\. Did you mean 'sync'\?$"),
        ("sync.every_s=soon", r"found sync\.every_s = 'soon' .*expected a number"),
        ("sync.every_s=-1", r"found sync\.every_s = '-1' .*expected 0 or more"),
        ("sync.every_s=nan", "expected a number"),
        ("sync.jitter=1.5", "expected 0 to 1"),
        ("sync.push=1", "expected true or false"),
        ("save.every=0", "expected above 0"),
        ("save.every=1.5", "expected a whole number"),
        ("source.kind=pipe", 'expected "stdin" or "csv" or "jsonl" or "tail" or "mqtt"'),
        ("source.delimiter=::", "expected one character"),
        ('source.time=["a", "b", "c"]', r'expected a column, or two: \["date", "time of day"\]'),
        ("source.port=70000", "expected 1 to 65535"),
        ("sinks.0.site=a/b", "expected letters, digits"),
        ("sinks.0.prefix=a/#", "expected a topic without"),
        ("learner.reject_above=0.5", 'expected above 1, or "never"'),
        ("threshold.votes=3,2", "1 ≤ k ≤ n"),
        ("threshold.votes=3", "1 ≤ k ≤ n"),
        ("device=../up", "expected letters, digits"),
        ("sync", r"found --set sync, expected --set table\.key=value"),
        ("sinks.3.path=x", r"expected table\.key .*sinks\.0\.key"),
        ("device.name=x", r"expected table\.key"),
        ("source=3", r"found source = '3' .*write \[source\]"),
        ("projection.n_hidden=0", r"\[projection\] in .*n_hidden=0, expected 1 to 65536"),
        ("projection.file=gone", r"projection\.file .*gone.*No such file"),
    ],
)
def test_a_mistake_is_named_with_what_to_write(configured, override, words):
    text = SHARED if override != "projection.file=gone" else "[projection]\n"
    with pytest.raises(SettingError, match=words):
        configured(text, override)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sync]\nevery_s = '60'\n", r"found sync\.every_s = '60' in .*agent\.toml.*a number"),
        ("[sync]\nevery_s = true\n", "expected a number"),
        ("[sync]\ndevices = 'a'\n", "expected a list, each text"),
        ("[sync]\ndevices = [1]\n", "expected a list, each text"),
        (
            "[source]\ncolums = 1\n",
            r"^Unknown key 'source.colums' in agent\.toml\. Did you .*mns'\?$",
        ),
        ("[[source]]\n", r"expected a table: write \[source\]"),
        ("[sinks]\n", r"expected \[\[sinks\]\] tables"),
        ("[", "is not TOML: .*: if it holds readings, `edgemerge init` writes a configuration"),
        ("", r"has no \[projection\]: add it, or"),
        ("[projection]\nfile = 'x'\nseed = 3\n", "both a file and settings"),
        ("[projection]\nn_hidden = 8\n", "n_inputs=0, expected at least 1"),
    ],
)
def test_a_mistake_in_the_file_is_named(configured, text, words):
    text = text if "projection" in words + text or text == "" else text + SHARED
    with pytest.raises(SettingError, match=words):
        configured(text)


def test_a_file_that_is_not_there_or_says_no_device(configured, tmp_path):
    with pytest.raises(SettingError, match=r"nothing\.toml cannot be read"):
        read_config(tmp_path / "nothing.toml", environment={})
    with pytest.raises(SettingError, match="does not set `device` and `state`"):
        configured(SHARED, head="")


def test_the_projection_is_made_loaded_or_left_to_the_fleet(configured, tmp_path):
    names = "[projection]\nnames = ['a', 'b']\nlow = [0, -1]\nhigh = 9.5\nseed = 3\n"
    made = Projection(n_inputs=2, names=("a", "b"), low=(0.0, -1.0), high=9.5, seed=3)
    assert configured(names).projection == made
    save(made, tmp_path / "shared.safetensors")
    assert configured("[projection]\nfile = 'shared.safetensors'\n").projection == made
    assert configured("[exchange]\nkind = 'http'\n").projection is None
    save(Detector(made), tmp_path / "other")
    with pytest.raises(SettingError, match="holds a Detector, expected a Projection"):
        configured("[projection]\nfile = 'other'\n")


def test_keys_under_their_former_names_work_and_say_the_new_one(configured, caplog):
    text = "[sync]\nlargest = 3\n[source]\nlongest_line = 99\n[log]\nform = 'json'\n"
    config = configured(SHARED + text + "[[sinks]]\nlargest = 1000\n")
    assert (config.sync.max_contributions, config.source.max_line_bytes) == (3, 99)
    assert (config.log.format, config.sinks[0].max_bytes) == ("json", 1000)
    assert caplog.messages == [
        "source.longest_line is now source.max_line_bytes: rename it",
        "sync.largest is now sync.max_contributions: rename it",
        "log.form is now log.format: rename it",
        "sinks.0.largest is now sinks.0.max_bytes: rename it",
    ]


@pytest.mark.parametrize(
    ("file", "flag", "found"),
    [("largest", "max_contributions", 2), ("max_contributions", "largest", 2)],
)
def test_a_flag_wins_over_the_file_under_either_name(configured, file, flag, found):
    config = configured(SHARED + f"[sync]\n{file} = 1\n", f"sync.{flag}={found}")
    assert config.sync.max_contributions == found


def test_the_new_name_wins_within_the_file(configured):
    config = configured(SHARED + "[sync]\nlargest = 1\nmax_contributions = 2\n")
    assert config.sync.max_contributions == 2


def test_bare_column_numbers_log_how_to_count_from_1(configured, caplog):
    configured(SHARED + "[source]\ncolumns = ['1', 'flow', -1]\ntime = '2'\n")
    assert not caplog.messages
    configured(SHARED + "[source]\ncolumns = [0, 2]\ntime = 1\n")
    assert len(caplog.messages) == 2
    assert '(0, 2) count from 0. Write "1", "3" in quotes' in caplog.messages[0]


# the former table


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[threshold]\nlimit = 6", MonitorConfig(limit=6.0)),
        ("[threshold]\nlimit = 6\nvotes = [2, 4]", MonitorConfig(limit=6.0, votes=(2, 4))),
        ("[threshold]\nquantile = 0.99", MonitorConfig(false_alarms=0.01)),
        ("[threshold]\nlimit = 6\n[monitor]\nlimit = 7", MonitorConfig(limit=7.0)),
        ("[threshold]\nsigmas = 3", MonitorConfig(learn="always", votes=(1, 1))),
        (
            "[threshold]\nquantile = 0.9\nwindow = 9",
            MonitorConfig(learn="always", votes=(1, 1), false_alarms=0.1),
        ),
        ("[learner]\nreject_above = 9", MonitorConfig(learn="always", votes=(1, 1))),
        ("[learner]\nreject_above = 9\n[monitor]\nlimit = 7", MonitorConfig(limit=7.0)),
    ],
)
def test_the_former_table_is_an_alias_that_says_what_to_write(configured, caplog, text, found):
    assert configured(SHARED + text).monitor == found
    if "[threshold]" in text:
        (line,) = (each for each in caplog.messages if "[threshold] is now [monitor]" in each)
        written = line.partition(": write ")[2].removesuffix(" there")
        wanted = tomllib.loads(f"x = {{ {written} }}")["x"]
        assert "votes" not in text or wanted["votes"] == list(found.votes)
        assert "limit" not in wanted or wanted["limit"] == 6
    if found.learn == "always":
        assert "and so is a fault that lasts. Leave it out, and use monitor.limit" in caplog.text


def test_a_flag_of_the_former_table_wins_over_the_file(configured):
    config = configured(SHARED + "[monitor]\nlimit = 7\n", "threshold.limit=8")
    assert config.monitor.limit == 8.0
    config = configured(SHARED, "threshold.limit=8", "monitor.limit=9")
    assert config.monitor.limit == 9.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[threshold]\nsigmas = 3\n[monitor]\nlimit = 4", "followed the last scores.*use monitor"),
        ("[threshold]\nwindow = 3\n[monitor]\nlimit = 4", "threshold.window.*use monitor.limit"),
        ("[threshold]\nquantile = 2", "0.5 to below 1"),
        ("[threshold]\nlevel = 2", "threshold.level"),
        ("[monitor]\nlimit = 4\nfalse_alarms = 0.1", "expected one of them"),
        ("[monitor]\nfalse_alarms = 'never'", "1 per week"),
        ("[monitor]\nfalse_alarms = 2", "between 0 and 1"),
        ("[monitor]\ncommissioning = 'soon'", "2 hours"),
        ("[monitor]\nlearn = 'sometimes'", '"normal" or "always" or "off"'),
        ("[monitor]\nvotes = [4, 3]", "1 ≤ k ≤ n"),
    ],
)
def test_settings_of_the_monitor_that_cannot_be_are_refused(configured, text, words):
    with pytest.raises(SettingError, match=words):
        configured(SHARED + text)


# the page


def keys_on_page():
    """Give {table: keys} as the page has them: a heading with the table, a row for each key."""
    found, table = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        heading = re.match(r"## `\[+(\w+)\]+`", line)
        if line.startswith("## "):
            table = heading[1] if heading else "" if "top" in line.lower() else "-"
        row = re.match(r"\| `(\w+)` \|", line)  # the first cell of a row
        if row:
            found.setdefault(table, []).append(row[1])
    return found


def test_the_page_has_every_key_and_no_other():
    kinds = TABLES | {"sinks": SinkConfig, "": TopLevelConfig}
    assert keys_on_page() == {
        table: [each.name for each in fields(kind)] for table, kind in kinds.items()
    }
    others = {"device", "state", "sinks", "next", "given", "file"}
    assert {each.name for each in fields(Config)} == {*others, *TABLES}


def test_the_page_has_the_defaults():
    text = PAGE.read_text(encoding="utf-8")
    for table, kind in (TABLES | {"sinks": SinkConfig}).items():
        part = text.split(f"## `[{table}]`".replace("[sinks]", "[[sinks]]"), 1)[1].split("\n## ")[0]
        for each in fields(kind):
            told = re.search(rf"^\| `{each.name}` \| (.*?)\|", part, re.MULTILINE)
            assert told
            assert told[1].strip() == written(each.default), f"{table}.{each.name}"


def written(default):
    if default is None:
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, str):
        return f'`"{default}"`'
    if isinstance(default, tuple):
        return f"`[{', '.join(written(each).strip('`') for each in default)}]`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def test_the_example_of_the_page_is_read(tmp_path):
    example = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example
    (tmp_path / "agent.toml").write_text(example[1], encoding="utf-8")
    config = read_config(tmp_path / "agent.toml", environment={})
    assert config.exchange != ExchangeConfig()
    factory.make_features(config)
    factory.make_monitor(config, config.projection)
