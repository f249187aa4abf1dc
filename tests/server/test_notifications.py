"""Notifications: what is told of reports, to whom, how often, and that nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from threading import Thread

import pytest
from aiosmtpd.controller import Controller

from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.server import notifications
from edgemerge.server.db.migrations import connect
from edgemerge.server.notifications import (
    GATHER_S,
    LEASE_S,
    MAX_NOTICES,
    STORM_S,
    NotifiedState,
    compare,
)
from edgemerge.server.reports.model import QUIET_S, LatestReport
from edgemerge.server.schemas import ReceiverRequest
from edgemerge.server.service import Service
from tests.server.reporting import NAMED, report
from tests.server.world import FLEET, ROOT, World
from tests.services.receivers import receiver

pytestmark = pytest.mark.slow
NOW = 1_794_000_000.0


def episode(number, *, began=None, ended=None, **more):
    began = NOW + number if began is None else began
    inputs = [["current", 12.5], ["flow", 3.0]]
    return {"number": number, "began": began, "ended": ended, "peak": 9.0, "inputs": inputs} | more


def monitor(*episodes):
    return {"phase": "watching", "ready": True, "limit": {"value": 4.0}, "episodes": list(episodes)}


def latest(*episodes, incarnation=0, **status):
    found = report(NOW, monitor=monitor(*episodes), incarnation=incarnation, **status)
    return LatestReport("pump-3", NOW, 1.0, False, found.status, (), None, None, 1)


def events(told, seen):
    found, after = compare(told, "pumps", seen, NOW)
    return [(each.event, each.episode) for each in found], after


# what is new in a report


def test_an_episode_is_told_when_it_begins_and_when_it_ends_once():
    _, told = events(None, latest())
    found, told = events(told, latest(episode(1)))
    assert found == [("alarm", 1)]
    assert events(told, latest(episode(1))) == ([], told)
    found, told = events(told, latest(episode(1, ended=NOW + 9)))
    assert found == [("all clear", 1)]
    assert events(told, latest(episode(1, ended=NOW + 9))) == ([], told)
    assert events(told, latest()) == ([], told)


def test_an_episode_that_came_and_went_between_two_reports_is_told_as_both():
    _, told = events(None, latest())
    found, told = events(told, latest(episode(1, ended=NOW), episode(2)))
    assert found == [("alarm", 1), ("all clear", 1), ("alarm", 2)]


def test_an_episode_that_is_acknowledged_and_gone_has_ended():
    _, told = events(None, latest(episode(4)))
    found, told = events(told, latest())
    assert found == [("all clear", 4)]
    assert told.newest == 4


def test_of_a_device_that_is_new_here_only_what_lasts_is_told():
    found, told = events(None, latest(episode(1, ended=NOW), episode(2)))
    assert found == [("alarm", 2)]
    assert events(told, latest(episode(1, ended=NOW), episode(2)))[0] == []


def test_another_incarnation_may_count_from_one_again():
    _, told = events(None, latest(episode(7, ended=NOW)))
    _, told = events(told, latest(incarnation=5))
    found, _ = events(told, latest(episode(1), incarnation=5))
    assert found == [("alarm", 1)]


def test_another_incarnation_with_the_same_episodes_tells_them_once():
    _, told = events(None, latest(episode(6, ended=NOW), episode(7)))
    found, told = events(told, latest(episode(6, ended=NOW), episode(7), incarnation=5))
    assert found == []
    assert events(told, latest(episode(7, ended=NOW), incarnation=5))[0] == [("all clear", 7)]


def test_an_agent_without_a_monitor_changes_nothing():
    _, told = events(None, latest(episode(7)))
    seen = LatestReport("pump-3", NOW, 1.0, False, report(NOW).status, (), None, None, 1)
    assert events(told, seen) == ([], told)


def test_a_message_says_what_the_device_knows():
    (alarm,), _ = compare(None, "pumps", latest(episode(1, **NAMED)), NOW)
    assert "Most like bearing, first seen on pump-3, ratio 1.04." in alarm.text
    assert "current (12.5 times its usual error)" in alarm.text
    assert (alarm.score, alarm.limit, alarm.fault) == (9.0, 4.0, "bearing")


def test_the_inputs_of_a_message_are_those_that_carry_the_alarm_as_in_one_of_an_agent():
    inputs = [["current", 12.5], ["flow", 0.9]]
    (alarm,), _ = compare(None, "pumps", latest(episode(1, inputs=inputs)), NOW)
    assert alarm.plain()["inputs"] == ("current",)
    assert alarm.reasons == (("current", 12.5), ("flow", 0.9))
    (alarm,), _ = compare(None, "pumps", latest(episode(1, inputs=inputs[1:])), NOW)
    assert alarm.inputs == ()
    assert alarm.text.endswith("No single input is unusual.")


def test_a_fault_that_is_recognized_later_is_told_once():
    _, told = events(None, latest(episode(1)))
    found, told = events(told, latest(episode(1, **NAMED)))
    assert found == [("recognized", 1)]
    assert events(told, latest(episode(1, **NAMED))) == ([], told)
    (clear,), _ = compare(told, "pumps", latest(episode(1, ended=NOW, **NAMED)), NOW)
    assert clear.text.endswith("Most like bearing, first seen on pump-3, ratio 1.04.")
    _, told = events(None, latest(episode(1, **NAMED)))
    assert events(told, latest(episode(1, **NAMED))) == ([], told)


def test_a_problem_and_a_refused_merge_are_told_when_they_begin():
    _, told = events(None, latest())
    problem = {"name": "no data", "since": NOW - 5, "words": "no usable row for 60 s"}
    refusal = "not adopted: what others saw does not fit: shift 9"
    seen = latest(told=refusal, problems=[problem])
    found, told = compare(told, "pumps", seen, NOW)
    assert [each.event for each in found] == ["problem", "merge refused"]
    assert found[0].at == NOW - 5
    assert "No data: no usable row for 60 s." in found[0].text
    assert compare(told, "pumps", seen, NOW)[0] == []
    found, told = compare(told, "pumps", latest(told="adopted 5 samples of 2 devices"), NOW)
    assert [each.event for each in found] == ["problem over"]
    assert told == NotifiedState(open=told.open)


def test_what_was_told_is_stored_and_read_again():
    told = NotifiedState(3, 9, (8, 9), (9,), ("no data",), offline=True, refused=True)
    assert NotifiedState.parse(told.json) == told


# receivers


class Site(World):
    """A world whose notifications are sent step by step."""

    def __init__(self, url, *, make=True, **options):
        self.url, self.tokens = url, {}
        if make:
            super().__init__(url)
            self.service.close()
        self.now, self.options, self.made = NOW, options, make
        self.open()

    def open(self):
        self.service = Service(connect(self.url), clock=lambda: self.now, **self.options)
        stop_worker(self.service)

    def restart(self):
        self.service.close()
        self.open()

    @property
    def act(self):
        return self.service.notifications

    def add(self, name, url, **more):
        asked = ReceiverRequest(**{"kind": "webhook", "url": url, "every_s": 0.0} | more)
        return self.act.put(FLEET, name, asked, ROOT)

    def report(self, device, *episodes, **status):
        if self.made:
            self.caller(device)
        status = {"monitor": monitor(*episodes)} | status
        self.service.take_report(FLEET, device, report(self.now, **status), self.now)
        self.service.writer.write(lambda _: None, fleet=FLEET)  # all before it is written

    def step(self, wait_s=GATHER_S):
        """Let time pass and messages be sent."""
        self.now += wait_s
        for thread in self.act.step():
            thread.join()

    def said(self):
        with self.service.database.reading() as tx:
            return [row[0] for row in tx.rows("select detail from audit")]


def stop_worker(service):
    act = service.notifications
    act.close()
    act._stopping.clear()


@pytest.fixture
def site(database_url):
    made = Site(database_url)
    yield made
    made.close()


@pytest.fixture
def quick_site(tmp_path):
    made = Site(f"sqlite:///{tmp_path / 'fleets.db'}")
    yield made
    made.close()


def test_a_receiver_is_told_of_an_alarm_and_of_its_end(site):
    with receiver() as server:
        site.add("shift", server.url)
        site.report("pump-3")
        site.report("pump-3", episode(1))
        site.step()
        site.report("pump-3", episode(1, ended=NOW))
        site.step()
        site.step()
        assert [(each["event"], each["device"]) for each in server.bodies] == [
            ("alarm", "pump-3"),
            ("all clear", "pump-3"),
        ]
        assert server.bodies[0]["fleet"] == FLEET
        ((found, waiting),) = site.act.receivers(FLEET)
        assert (found.delivered, waiting, found.trouble) == (2, 0, "")
        with site.service.database.reading() as tx:
            assert tx.rows("select * from notices") == []


def test_each_receiver_hears_of_its_events_only(quick_site):
    site = quick_site
    with receiver() as ends, receiver() as everything:
        site.add("ends", ends.url, events=["all clear"])
        site.add("all", everything.url, events=["alarm", "all clear", "merge refused"])
        site.report("pump-3")
        site.report("pump-3", episode(1), told="not adopted: it does not fit")
        site.step()
        site.report("pump-3", episode(1, ended=NOW))
        site.step()
        assert [each["event"] for each in ends.bodies] == ["all clear"]
        told = [sorted(each["counts"]) for each in everything.bodies]
        assert told == [["alarm", "merge refused"], ["all clear"]]


def test_a_restart_neither_repeats_nor_loses(site):
    with receiver() as server:
        site.add("shift", server.url)
        site.report("pump-3", episode(1))
        site.restart()  # before it was sent
        site.report("pump-3", episode(1))
        site.step()
        site.restart()
        site.report("pump-3", episode(1))
        site.step()
        site.report("pump-3", episode(1, ended=NOW))
        site.restart()
        site.step()
        assert [each["event"] for each in server.bodies] == ["alarm", "all clear"]


def test_a_storm_is_one_message_with_a_count(quick_site):
    site = quick_site
    with receiver() as server:
        site.add("shift", server.url)
        names = [f"pump-{number}" for number in range(1000)]
        with site.service.database.writing() as tx:
            for name in names:
                values = (FLEET, name, f"hash of {name}", NOW)
                sql = "insert into devices (fleet, device, token_hash, enrolled) values (?,?,?,?)"
                tx.run(sql, *values)
        for number, name in enumerate(names):
            told = report(site.now, monitor=monitor(episode(1)))
            site.service.take_report(FLEET, name, told, site.now)
            if number % 20 == 19:  # within a minute
                site.service.writer.write(lambda _: None, fleet=FLEET)
                site.step(1.0)
        assert server.bodies == []
        site.step(STORM_S - 50.0)
        (message,) = server.bodies
        assert message["title"] == "pumps: 1000 alarms"
        assert message["count"] == 1000
        assert message["devices"] == names[:5]
        assert "pump-0, pump-1, pump-2, pump-3, pump-4 and 995 more" in message["text"]


def test_at_most_one_message_in_a_time_and_the_rest_summed_up(quick_site):
    site = quick_site
    with receiver() as server:
        site.add("shift", server.url, every_s=600.0)
        site.report("pump-1", episode(1))
        site.step()
        for number in (2, 3, 4):
            site.report(f"pump-{number}", episode(1))
            site.step(60.0)
        assert [each["count"] for each in server.bodies] == [1]
        site.step(419.0)
        assert len(server.bodies) == 1
        site.step(2.0)
        assert [each["count"] for each in server.bodies] == [1, 3]


def test_nothing_is_lost_in_an_hour_in_which_the_receiver_is_down(quick_site):
    site, begun = quick_site, quick_site.now
    with receiver(*[500] * 1000) as server:
        site.add("shift", server.url)
        while site.now < begun + 3600:
            minute = int((site.now - begun) // 60)
            site.report(f"pump-{minute}", episode(1))
            site.step(10.0)
        tries = len(server.got)
        ((found, waiting),) = site.act.receivers(FLEET)
        assert (waiting, found.trouble) == (60, "the receiver answered 500 Internal Server Error")
        assert 12 <= tries < 40  # the delays grow to five minutes
        with site.service.database.reading() as tx:
            text = site.service.metrics.text(tx, site.service.history, site.now).decode()
        assert "\nedgemerge_notices 60.0" in text
        assert "\nedgemerge_receivers_failing 1.0" in text
        server.codes.clear()
        site.step(310.0)
        assert len(server.got) == tries + 1
        assert server.bodies[-1]["counts"] == {"alarm": 60}
        site.step(310.0)
        assert len(server.got) == tries + 1


def test_what_is_refused_for_good_is_dropped_and_shown(quick_site, caplog):
    site = quick_site
    with receiver(400) as server:
        site.add("shift", server.url)
        site.report("pump-1", episode(1))
        site.step()
        ((found, waiting),) = site.act.receivers(FLEET)
        assert (waiting, found.delivered) == (0, 0)
        assert found.trouble == "the receiver answered 400 Bad Request"
        assert "a message was refused and is dropped" in caplog.text
        site.report("pump-2", episode(1))
        site.step()
        assert site.act.receivers(FLEET)[0][0].trouble == ""


def test_a_bounded_number_waits_and_what_is_dropped_is_counted(quick_site, monkeypatch):
    site = quick_site
    monkeypatch.setattr(notifications, "MAX_NOTICES", 3)
    with receiver() as server:
        site.add("shift", server.url)
        for number in range(5):
            site.report(f"pump-{number}", episode(1))
        site.step()
        (message,) = server.bodies
        assert message["count"] == 5
        assert "2 earlier events could not be kept." in message["text"]
    assert MAX_NOTICES == 10_000


def test_a_receiver_that_never_answers_does_not_hold_up_others(quick_site):
    site = quick_site
    with receiver() as good, receiver() as slow:
        site.add("bad", slow.url)
        site.add("good", good.url)
        site.report("pump-1", episode(1))
        slow.hold.set()
        site.now += GATHER_S
        threads = site.act.step()
        for thread in threads:
            thread.join(0.2 if thread.name == "notify bad" else None)
        assert len(good.bodies) == 1
        assert [each.name for each in site.act.step()] == ["notify bad"]  # and is not sent twice
        slow.hold.clear()
        for thread in threads:
            thread.join()
        assert len(slow.got) == 1


def test_a_receiver_is_not_forgotten_when_there_was_no_thread_for_its_message(
    quick_site, monkeypatch
):
    def fails(_thread):
        raise RuntimeError("can't start new thread")

    with receiver() as server:
        quick_site.add("shift", server.url)
        quick_site.report("pump-1", episode(1))
        with monkeypatch.context() as full:
            full.setattr(Thread, "start", fails)
            with pytest.raises(RuntimeError):
                quick_site.step()
        quick_site.step(LEASE_S)
        assert len(server.bodies) == 1


def test_a_device_that_is_not_heard_of_is_told_once_and_so_is_that_it_is_back(site):
    with receiver() as server:
        site.add("shift", server.url, events=["offline"])
        site.report("pump-1")
        site.step(QUIET_S - 20)
        assert server.bodies == []
        for _ in range(5):
            site.step(20)
        site.restart()
        for _ in range(20):
            site.step(20)
        assert [each["event"] for each in server.bodies] == ["offline"]
        site.report("pump-1")
        for _ in range(3):
            site.step(20)
        assert [each["event"] for each in server.bodies] == ["offline", "online"]


def test_devices_are_not_offline_because_the_server_was(quick_site):
    site = quick_site
    with receiver() as server:
        site.add("shift", server.url, events=["offline"])
        site.report("pump-1")
        site.service.history.flush()
        site.now += 3600
        site.restart()
        site.step(20)
        site.report("pump-1")
        for _ in range(10):
            site.step(20)
        assert server.bodies == []
        site.now += 3600  # the machine slept
        site.step(1)
        site.step(20)
        assert server.bodies == []


def test_two_servers_on_one_database_send_each_message_once(fresh_postgres_url):
    site = Site(fresh_postgres_url)
    other = Service(connect(fresh_postgres_url), clock=lambda: site.now)
    stop_worker(other)
    try:
        with receiver() as server:
            site.add("shift", server.url)
            other.notifications.step()  # hears of the receiver
            for number in range(1, 6):
                site.report(f"pump-{number}", episode(1))
                told = report(site.now, monitor=monitor(episode(1)))
                other.take_report(FLEET, f"pump-{number}", told, site.now)
            other.writer.write(lambda _: None, fleet=FLEET)
            site.now += STORM_S
            steps = [Thread(target=each.step) for each in (site.act, other.notifications)]
            for step in steps:
                step.start()
            for step in steps:
                step.join()
            for each in (site.act, other.notifications):
                for thread in each.step():
                    thread.join()
            (message,) = server.bodies
            assert message["count"] == 5
    finally:
        other.close()
        site.close()


def test_what_a_killed_server_had_claimed_is_sent_by_another(fresh_postgres_url):
    site = Site(fresh_postgres_url)
    try:
        with receiver() as server:
            site.add("shift", server.url)
            site.report("pump-1", episode(1))
            ((found, _),) = site.act.receivers(FLEET)
            claim = notifications._claim
            assert site.service.writer.write(lambda tx: claim(tx, found, site.now))
            assert not site.service.writer.write(lambda tx: claim(tx, found, site.now))
            site.step(LEASE_S - 1.0)
            assert server.bodies == []
            site.step(2.0)
            assert len(server.bodies) == 1
    finally:
        site.close()


# who may, and what is kept secret


def test_secrets_and_paths_are_never_shown_again(quick_site):
    site = quick_site
    url = "https://hooks.example.org/T123/path-secret"
    assert site.add("chat", url, kind="slack", secret="token-secret")
    assert not site.add("chat", url, kind="slack", secret="token-secret")
    ((found, _),) = site.act.receivers(FLEET)
    assert (found.address, found.secret_kind) == ("https://hooks.example.org/…", "stored")
    assert "token-secret" not in repr(found)
    said = " ".join(site.said())
    assert "hooks.example.org" in said
    assert "path-secret" not in said
    assert "token-secret" not in said
    site.add("chat", url, kind="slack")
    assert site.act.receivers(FLEET)[0][0].secret is None  # it would reach another address


def test_a_secret_may_lie_in_a_file_of_one_folder_only(tmp_path):
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "ntfy").write_text("sesame\n")
    (tmp_path / "other").write_text("private\n")
    site = Site(f"sqlite:///{tmp_path / 'fleets.db'}", secrets_folder=folder)
    try:
        with receiver() as server:
            site.add("phone", f"{server.url}/topic", kind="ntfy", secret_file="ntfy")
            assert site.act.test(FLEET, "phone", ROOT) == ""
            assert server.got[0][1]["Authorization"] == "Bearer sesame"
            for name in ("../other", "/etc/hostname", ".", "missing"):
                with pytest.raises(SettingError, match="secret"):
                    site.add("phone", f"{server.url}/topic", kind="ntfy", secret_file=name)
            (folder / "ntfy").unlink()
            assert "cannot read the secret" in site.act.test(FLEET, "phone", ROOT)
    finally:
        site.close()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kind": "webhook"}, "needs url"),
        ({"kind": "webhook", "url": "file:///etc/passwd"}, "expected http"),
        ({"kind": "webhook", "url": "gopher://a/b"}, "expected http"),
        ({"kind": "webhook", "url": "http://user:pw@a/"}, "plain address"),
        ({"kind": "webhook", "url": "http://a/\r\nX: y"}, "plain address"),
        ({"kind": "ntfy", "url": "https://ntfy.example.org/"}, "ends with a topic"),
        ({"kind": "email", "host": "m"}, "needs host, sender and to"),
        ({"kind": "email", "host": "m", "sender": "a", "to": ["b@c"]}, "expected one with @"),
        ({"kind": "slack", "url": "http://a/b", "secret_file": "x"}, "--secrets-folder"),
        ({"kind": "slack", "url": "http://a/b", "secret": "s", "secret_file": "x"}, "one of them"),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_stored(quick_site, asked, words):
    with pytest.raises(SettingError, match=words):
        quick_site.act.put(FLEET, "shift", ReceiverRequest(**asked), ROOT)
    assert quick_site.act.receivers(FLEET) == []


def test_no_program_can_be_set_from_the_web():
    with pytest.raises(ValueError, match="kind"):
        ReceiverRequest(kind="exec", url="http://a")


def test_a_test_message_says_whether_it_was_taken(quick_site):
    site = quick_site
    with receiver(200, 401) as server:
        site.add("shift", server.url)
        assert site.act.test(FLEET, "shift", ROOT) == ""
        assert server.bodies[0]["text"] == "This is a test message of fleet pumps to shift."
        assert "401" in site.act.test(FLEET, "shift", ROOT)
    assert site.act.test(FLEET, "shift", ROOT)  # nobody listens
    assert sum("delivered" in each for each in site.said()) == 3
    with pytest.raises(UnknownError, match="no receiver other"):
        site.act.test(FLEET, "other", ROOT)


def test_links_lead_to_the_page_of_the_device_or_of_the_fleet(tmp_path):
    site = Site(f"sqlite:///{tmp_path / 'fleets.db'}", public_url="https://hub.example.org/")
    try:
        with receiver() as server:
            site.add("shift", server.url)
            site.report("pump-1", episode(1))
            site.step()
            site.report("pump-2", episode(1))
            site.report("pump-3", episode(1))
            site.step()
            page = f"https://hub.example.org/ui/fleets/{FLEET}"
            assert [each["link"] for each in server.bodies] == [f"{page}/devices/pump-1", page]
    finally:
        site.close()


def test_a_corrected_address_is_told_what_waits(quick_site):
    site = quick_site
    with receiver() as server:
        site.add("shift", "http://127.0.0.1:9/")
        site.report("pump-1", episode(1))
        site.step()
        site.add("shift", server.url)
        site.step()
        assert [each["device"] for each in server.bodies] == ["pump-1"]


def test_without_receivers_nothing_is_noted_and_the_past_is_not_told_later(quick_site):
    site = quick_site
    site.report("pump-1", episode(1, ended=NOW))
    with receiver() as server:
        site.add("shift", server.url)
        site.report("pump-1", episode(1, ended=NOW))
        site.step()
        assert server.bodies == []
        site.act.remove(FLEET, "shift", ROOT)
        site.report("pump-1", episode(1, ended=NOW), episode(2, ended=NOW))
        with site.service.database.reading() as tx:
            assert not tx.rows("select * from told") + tx.rows("select * from notices")
        site.add("shift", server.url)
        site.report("pump-1", episode(1, ended=NOW), episode(2, ended=NOW))
        site.step()
        assert server.bodies == []


def test_a_fleet_that_is_deleted_takes_its_receivers_along(quick_site):
    site = quick_site
    site.add("shift", "http://127.0.0.1:9/")
    site.report("pump-1", episode(1))
    site.service.delete(FLEET, ROOT)
    site.service.create(site.fleet, ROOT)
    assert site.act.receivers(FLEET) == []
    with site.service.database.reading() as tx:
        assert not tx.rows("select * from told") + tx.rows("select * from notices")


def test_there_are_only_so_many_receivers(quick_site, monkeypatch):
    monkeypatch.setattr(notifications, "MAX_RECEIVERS", 2)
    for name in ("a", "b"):
        quick_site.add(name, "http://127.0.0.1:9/")
    with pytest.raises(SettingError, match="remove one first"):
        quick_site.add("c", "http://127.0.0.1:9/")
    quick_site.add("b", "http://127.0.0.1:9/x")


# mail servers, and servers that are killed


class Mailbox:
    """Answers with the next of its words, then takes mails."""

    def __init__(self, *answers):
        self.answers, self.got = list(answers), []

    async def handle_DATA(self, _server, _session, envelope):
        if self.answers:
            return self.answers.pop(0)
        self.got.append(envelope)
        return "250 OK"


def test_a_mail_server_that_refuses_for_now_gets_it_again_and_one_that_refuses_it_does_not(
    quick_site, free_tcp_port
):
    site, box = quick_site, Mailbox("451 later", "554 no")
    mail = {"kind": "email", "host": "127.0.0.1", "port": free_tcp_port, "security": "none"}
    mail |= {"sender": "hub@example.org", "to": ["shift@example.org"]}
    controller = Controller(box, hostname="127.0.0.1", port=free_tcp_port)
    controller.start()
    try:
        site.add("mail", "", **mail)
        site.report("pump-1", episode(1))
        site.step()
        assert "451 later" in site.act.receivers(FLEET)[0][0].trouble
        site.step()
        ((found, waiting),) = site.act.receivers(FLEET)
        assert "554 no" in found.trouble
        assert (waiting, found.delivered) == (0, 0)
        site.report("pump-2", episode(1, **NAMED))
        site.step()
        (mail,) = box.got
        assert mail.rcpt_tos == ["shift@example.org"]
        assert b"Subject: pump-2: alarm, most like bearing" in mail.content
    finally:
        controller.stop()


PROCESS = """
import sys
from tests.server.test_notifications import Site, episode
site = Site(sys.argv[1], make=False)
for number in range(20):  # devices repeat in each report what lasts
    site.report(f"pump-{number}", episode(1))
    site.step()
site.step(400.0)
site.close()
"""


@pytest.mark.long
@pytest.mark.parametrize("place", ["server-after-notification", "server-before-commit"])
def test_what_is_killed_at_any_moment_loses_nothing_and_repeats_one_message_at_most(
    tmp_path, place
):
    url = f"sqlite:///{tmp_path / 'fleets.db'}"
    with receiver(500, 200, 200, 500) as server:
        site = Site(url)
        for number in range(20):
            site.caller(f"pump-{number}")
        site.add("shift", server.url)
        site.close()
        kills = 0
        for nth in (3, 5, 11, 0):
            variables = os.environ | ({"EDGEMERGE_FAILPOINT": f"{place}:{nth}"} if nth else {})
            done = subprocess.run(
                [sys.executable, "-c", PROCESS, url], env=variables, timeout=120, check=False
            )
            kills += done.returncode == -9
            assert done.returncode in (0, -9)
        assert done.returncode == 0
        assert kills == 3
        taken = [
            body for body, code in zip(server.bodies, server.answered, strict=True) if code == 200
        ]
        told = Counter(name for body in taken for name in body.get("devices", [body["device"]]))
        assert set(told) == {f"pump-{number}" for number in range(20)}
        assert sum(body["count"] for body in taken) <= 20 + 5 * kills
        assert max(told.values()) <= 1 + kills
