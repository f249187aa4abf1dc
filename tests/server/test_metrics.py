"""Metrics: what an operator sees of the server, and the Grafana dashboard that shows it."""

import json
import re
import time
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgemerge import encode
from edgemerge.server.auth import Caller
from edgemerge.server.db.migrations import connect
from edgemerge.server.fleets import Fleet
from edgemerge.server.main import RequestMiddleware
from edgemerge.server.service import Service
from tests.server.reporting import alarm_of, merge_of, monitor, report, said
from tests.server.wire import SHARED, ask, note, push
from tests.services.hub import running
from tests.services.prometheus import checked

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "edgemerge.json").read_text(encoding="utf-8"))
PANELS = BOARD["panels"]
EXPRESSIONS = [(panel["title"], t["expr"]) for panel in PANELS for t in panel["targets"]]
ADDED = {"instance", "job"}  # by Prometheus, to everything that it reads
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A server with a little of everything behind it."""
    with running(f"sqlite:///{tmp_path_factory.mktemp('metrics') / 'fleets.db'}") as made:
        made.operator.create_fleet("mine", SHARED)
        tokens = {name: made.enrol("mine", name) for name in ("a", "b", "c", "d", "e", "f")}
        assert push(made, tokens["a"], note("a")).status == 201
        assert push(made, tokens["b"], note("b", 3)).status == 201
        assert push(made, tokens["b"], note("b", 2)).status == 409
        assert push(made, tokens["c"], note("c")).status == 201
        send(made, tokens["a"], alarms=[alarm_of(1.0), alarm_of(2.0)], merge=merge_of(3.0))
        send(made, tokens["d"], leaving=True)
        assert ask(made, "GET", "/fleets/mine/total", token=tokens["f"]).status == 200
        made.operator.revoke("mine", "c")
        assert ask(made, "POST", report_of("a"), token=tokens["a"], body=b"{}").status == 422
        yield made


def report_of(device):
    return f"/fleets/mine/devices/{device}/report"


def send(here, token, **words):
    device = here.service.caller(token).name
    body = json.dumps(said(5.0, **words)).encode()
    assert ask(here, "POST", report_of(device), token=token, body=body).status == 200


def scraped(here):
    return ask(here, "GET", "/metrics").body.decode()


def values(here, name):
    """The values of one metric by its labels' values."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(scraped(here))
        for sample in family.samples
        if sample.name == name
    }


def value(here, name):
    return values(here, name)[()]


def test_devices_are_counted_by_state(here):
    assert values(here, "edgemerge_device_states") == {
        ("online",): 1.0,
        ("problem",): 0.0,
        ("quiet",): 2.0,  # one has shared, one has pulled; neither has ever reported
        ("offline",): 2.0,  # one has left, one was never heard of
        ("revoked",): 1.0,
    }
    assert value(here, "edgemerge_devices") == 5.0


def test_reports_are_counted_by_what_became_of_them(here):
    found = values(here, "edgemerge_reports_total")
    assert found == {("kept",): 2.0, ("too many",): 0.0, ("refused",): 1.0}
    assert value(here, "edgemerge_alarms_total") == 2.0
    assert value(here, "edgemerge_merges_total") == 1.0


def test_what_is_stored_is_counted(here):
    used = 1.0 - here.service.capacity("mine").left
    assert 0.0 < used < 1e-3
    assert value(here, "edgemerge_fleets") == 1.0
    assert value(here, "edgemerge_stored") == 3.0
    assert value(here, "edgemerge_samples") == 12.0
    assert value(here, "edgemerge_capacity_left_ratio") == 1.0 - used
    assert value(here, "edgemerge_choices") == value(here, "edgemerge_choices_undone") == 0.0
    assert value(here, "edgemerge_waiting") == 0.0
    assert values(here, "edgemerge_contributions_total")[("stale",)] == 1.0


def test_choices_are_counted_and_apart_from_them_those_undone(here):
    def change(tx):
        for number, undone in ((1, None), (2, None), (3, 5.0)):
            tx.run(
                "insert into choices (fleet, number, at, actor, epoch, undone, body)"
                " values ('gone', ?, 1, 'root', 1, ?, '')",
                number,
                undone,
            )

    here.service.writer.write(change)
    assert value(here, "edgemerge_choices") == 2.0
    assert value(here, "edgemerge_choices_undone") == 1.0
    here.service.writer.write(lambda tx: tx.run("delete from choices where fleet = 'gone'"))


def test_history_that_is_not_written_has_an_age(here):
    here.service.history.flush()
    assert value(here, "edgemerge_history_unwritten_seconds") == 0.0
    here.service.history.pushed("mine", "a", 1)
    real, here.service.history._clock = here.service.history._clock, lambda: time.time() + 100.0
    try:
        assert value(here, "edgemerge_history_unwritten_seconds") >= 100.0
    finally:
        here.service.history._clock = real


def test_pages_that_are_open_are_counted_and_do_not_count_as_slow_answers(here):
    here.service.metrics.open_streams.inc()
    assert value(here, "edgemerge_watching") == 1.0
    here.service.metrics.open_streams.dec()
    assert "live" not in "".join(
        line for line in scraped(here).splitlines() if "request_seconds" in line
    )


def test_the_length_of_a_stream_is_no_time_to_answer(here):
    watched = RequestMiddleware(here.app, service=here.service, load=here.app.state.load)
    for path in ("/ui/fleets/{fleet}/live", "/ui/fleets/{fleet}/dead"):
        scope = {"type": "http", "method": "GET", "route": SimpleNamespace(path=path)}
        watched._count(scope, 200, 3600.0)
    told = scraped(here)
    assert 'edgemerge_requests_total{method="GET",route="/ui/fleets/{fleet}/live"' in told
    slow = [line for line in told.splitlines() if line.startswith("edgemerge_request_seconds")]
    assert any("/dead" in line for line in slow)
    assert not any("/live" in line for line in slow)


def test_pages_and_routes_of_the_api_are_counted_by_their_full_path(here):
    for path in ("/ui/fleets/mine", "/ui/static/0/style.css", "/ui", "/ui/nowhere", "/healthz"):
        httpx.get(here.url + path)
    told = scraped(here)
    for path in (
        "/ui/fleets/{fleet}",
        "/ui/static/{version}/{name:path}",
        "/ui",
        "/ui/{rest:path}",
        "/healthz",
    ):
        assert f'edgemerge_requests_total{{method="GET",route="{path}"' in told


def insert_devices(here, count):
    columns = "fleet, device, token_hash, enrolled, seen"
    sql = f"insert into devices ({columns}) values ('mine', ?, ?, 0, 0)"
    here.service.writer.write(lambda tx: [tx.run(sql, f"d{i}", f"t{i}") for i in range(count)])


def test_problems_with_the_data_are_counted_by_name(tmp_path):
    problem = {"since": 1.0, "words": ""}
    with running(f"sqlite:///{tmp_path / 'fleets.db'}") as here:
        here.operator.create_fleet("mine", SHARED)
        insert_devices(here, 3)
        now = here.service.clock()
        for i, names in enumerate((["no data"], ["no data", "gap"], ["new kind"])):
            told = report(now, problems=[problem | {"name": name} for name in names])
            here.service.history.take("mine", f"d{i}", told, now)
        found = values(here, "edgemerge_problems")
        assert found[("no data",)] == 2.0
        assert (found[("gap",)], found[("other",)], found[("stuck sensor",)]) == (1.0, 1.0, 0.0)
        assert values(here, "edgemerge_device_states")[("problem",)] == 3.0


def test_no_name_of_a_fleet_or_device_is_told(here):
    told = scraped(here)
    assert "mine" not in told
    assert not re.search(r'"[abcdef]"', told)


@pytest.mark.slow
def test_a_scrape_asks_the_database_no_more_often_for_a_thousand_devices(tmp_path):
    with running(f"sqlite:///{tmp_path / 'fleets.db'}") as here:
        here.operator.create_fleet("mine", SHARED)
        few = queries(here)
        insert_devices(here, 1000)
        now = here.service.clock()
        for i in range(1000):
            here.service.history.take("mine", f"d{i}", report(now), now)
        assert queries(here) == few > 0
        assert values(here, "edgemerge_device_states")[("online",)] == 1000.0


def queries(here) -> int:
    """Count what a scrape asks the database."""
    asked: list[str] = []

    class Counted:
        def __getattr__(self, name):
            def ask(sql, *values):
                asked.append(sql)
                return getattr(tx, name)(sql, *values)

            return ask

    with here.service.database.reading() as tx:
        here.service.metrics.text(Counted(), here.service.history, here.service.clock())
    return len(asked)


def test_prometheus_can_read_it_all(here):
    checked("metrics", text=scraped(here))


def test_prometheus_takes_the_example_of_a_configuration():
    assert "SUCCESS" in checked("config", str(DEPLOY / "prometheus.example.yml"))


def test_prometheus_understands_every_expression_of_the_dashboard(tmp_path):
    rules = [
        {"record": f"panel:{i}", "expr": expr.replace("$__rate_interval", "5m")}
        for i, (_, expr) in enumerate(EXPRESSIONS)
    ]
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}), encoding="utf-8")
    assert f"{len(rules)} rules found" in checked("rules", str(file))


@pytest.mark.parametrize(("title", "expr"), EXPRESSIONS)
def test_every_expression_of_the_dashboard_finds_its_numbers(here, title, expr):
    names = set(re.findall(r"edgemerge_\w+", expr))
    assert len(names) == 1, title
    (name,) = names
    labels = [
        sample.labels
        for family in text_string_to_metric_families(scraped(here))
        for sample in family.samples
        if sample.name == name
    ]
    assert labels, f"{name} is not told"
    used = set(re.findall(r"(\w+)\s*[=!]~?\"", expr))
    for by in re.findall(r"by \(([^)]*)\)", expr):
        used |= set(by.split(", "))
    assert used - ADDED <= set(labels[0])
    for label, wanted in re.findall(r"(\w+)=\"([^$\"]*)\"", expr):
        assert wanted in {each[label] for each in labels}


def test_every_panel_says_what_it_shows_and_in_which_unit():
    titles = [panel["title"] for panel in PANELS]
    assert len(titles) == len(set(titles)) > 12
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == SOURCE
        assert panel["targets"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
        assert all('instance=~"$instance"' in target["expr"] for target in panel["targets"])
    names = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert names["datasource"]["query"] == "prometheus"
    assert names["instance"]["datasource"] == SOURCE


def test_no_two_panels_overlap_and_all_fit_the_grid():
    places = [panel["gridPos"] for panel in PANELS]
    assert all(p["x"] >= 0 and p["x"] + p["w"] <= 24 and p["w"] * p["h"] > 0 for p in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_every_metric_is_on_the_dashboard(here):
    shown = " ".join(expr for _, expr in EXPRESSIONS)
    told = set(re.findall(r"^# TYPE (edgemerge_\w+) (?!unknown)", scraped(here), re.MULTILINE))
    told = {name for name in told if not name.endswith("_created")}
    assert told <= set(re.findall(r"edgemerge_\w+?(?=_bucket|\W)", shown))


def test_every_metric_is_explained(here):
    page = DEPLOY.parent / "docs" / "how-to" / "monitor-with-prometheus.md"
    words = page.read_text(encoding="utf-8")
    told = re.findall(r"^# TYPE (edgemerge_\w+) ", scraped(here), re.MULTILINE)
    assert [name for name in told if f"`{name}`" not in words and "_created" not in name] == []


def test_prometheus_takes_the_rules_of_the_page(tmp_path):
    page = DEPLOY.parent / "docs" / "how-to" / "monitor-with-prometheus.md"
    (rules,) = re.findall(r"```yaml\n(groups:.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "rules.yml").write_text(rules, encoding="utf-8")
    assert "8 rules found" in checked("rules", str(tmp_path / "rules.yml"))


@pytest.fixture
def named_devices(tmp_path):
    """A server that shows metrics of up to three devices, and has five, the fourth in alarm."""
    service = Service(connect(f"sqlite:///{tmp_path / 'fleets.db'}"), device_metrics=3)
    root = Caller("root")
    fleet = Fleet("mine", encode(SHARED), "totals", 1, growing_only=False, epoch=0, created=0.0)
    service.create(fleet, root)
    for name in "abcde":
        token, _ = service.invite("mine", name, 60.0, root)
        service.enrol(token, "mine", name)
    now = service.clock()
    quiet = monitor(episodes=[])
    for name, status in {"a": quiet, "b": quiet, "d": monitor()}.items():
        service.take_report("mine", name, report(now, monitor=status), now)
    yield service
    service.close()


def device_series(service):
    with service.database.reading() as tx:
        text = service.metrics.text(tx, service.history, service.clock()).decode()
    return text, {
        (sample.name, *map(sample.labels.get, sorted(sample.labels, reverse=True))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("edgemerge_device_", "edgemerge_devices_without"))
        and "state" not in sample.labels
    }


def test_devices_have_metrics_of_their_own_up_to_a_limit_and_those_in_alarm_come_first(
    named_devices,
):
    text, found = device_series(named_devices)
    checked("metrics", text=text)
    alarms = {key[2]: value for key, value in found.items() if key[0] == "edgemerge_device_alarm"}
    assert alarms == {"d": 1.0, "a": 0.0, "b": 0.0}
    assert found["edgemerge_device_online", "mine", "a"] == 1.0
    assert found["edgemerge_device_problems", "mine", "d"] == 0.0
    assert found["edgemerge_devices_without_metrics",] == 2.0
    named_devices.revoke("mine", "d", Caller("root"))
    _, found = device_series(named_devices)
    assert {key[2] for key in found if len(key) == 3} == {"a", "b", "c"}
    assert found["edgemerge_device_online", "mine", "c"] == 0.0


def test_names_are_in_no_metric_unless_that_is_switched_on(here):
    assert 'device="' not in scraped(here)
    assert "edgemerge_devices_without_metrics" not in scraped(here)


RULES = DEPLOY / "prometheus.rules.yml"


def test_the_rule_for_machine_alarms_fires_for_the_device_that_a_server_says_is_in_alarm(
    named_devices, tmp_path
):
    text, _ = device_series(named_devices)
    lines = [line for line in text.splitlines() if line.startswith("edgemerge_device_alarm{")]
    series = [
        # Two servers on one database say the same: it is one alarm.
        {"series": f'{name[:-1]},instance="{instance}"}}', "values": f"0x4 {float(value):g}x10"}
        for name, value in (line.rsplit(" ", 1) for line in lines)
        for instance in ("one", "two")
    ]
    assert len(series) == 6
    labels = {"severity": "page", "fleet": "mine", "device": "d"}
    summary = {"summary": "d in mine behaves unusually"}
    fired = [{"exp_labels": labels, "exp_annotations": summary}]
    about = {"alertname": "MachineAlarm"}
    tests = [
        {
            "interval": "1m",
            "input_series": series,
            "alert_rule_test": [
                {"eval_time": "4m", **about, "exp_alerts": []},
                {"eval_time": "6m", **about, "exp_alerts": fired},
            ],
        }
    ]
    file = tmp_path / "test.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}), encoding="utf-8")
    assert "SUCCESS" in checked("rules", str(file), how="test")


def test_prometheus_takes_the_rules_and_a_server_has_what_they_ask_for(named_devices):
    assert "5 rules found" in checked("rules", str(RULES))
    text, _ = device_series(named_devices)
    for name in set(re.findall(r"\bedgemerge_\w+", RULES.read_text(encoding="utf-8"))):
        assert f"\n{name}" in text
