"""Alarms to people: over real webhooks, mail servers, programs and syslog, each at least once."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from time import monotonic

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from edgemerge import delivery
from edgemerge.agent.config import read_config
from edgemerge.agent.factory import make_sinks
from edgemerge.agent.quality import Problem, ProblemEvent
from edgemerge.agent.sinks import DeliverySink
from edgemerge.core.errors import SettingError
from edgemerge.daemon import Backoff
from edgemerge.delivery import (
    EmailChannel,
    ExecChannel,
    Message,
    SyslogChannel,
    UndeliveredError,
    WebhookChannel,
    summarize,
)
from tests.agent.listening import said
from tests.services.ports import free_port
from tests.services.receivers import dripping, receiver
from tests.waiting import until

pytestmark = pytest.mark.slow

ALARM = Message("alarm", "pump-3", 1_794_000_000.0, 7, 12.5, 4.0, ("current", "flow"), "odd-1")
CLEAR = Message("all clear", "pump-3", 1_794_000_600.0, 7, 1.1, 4.0)


def episode(sink, number, index=0, *, end=True):
    """Let an episode begin and end."""
    sink.verdict(replace(said(index, alarm=True, score=12.5), episode=number))
    sink.verdict(replace(said(index + 1, alarm=True, score=20.0), episode=number))
    if end:
        sink.verdict(said(index + 2))
        sink.verdict(said(index + 3))


def drained(sink):
    until(lambda: not len(sink.outbox), "nothing waits")
    sink.close()


def quickly():
    return Backoff(0.01, 0.02)


# what is said, and when


def test_a_message_says_what_when_and_why():
    assert ALARM.title == "pump-3: alarm"
    assert ALARM.text == (
        "pump-3 behaves unusually since 2026-11-06 21:20:00 UTC. Score 12.5, limit 4. "
        "Most unusual: current, flow."
    )
    assert CLEAR.text == "pump-3 behaves as usual again since 2026-11-06 21:30:00 UTC."
    assert "unusually since 1e300" not in replace(ALARM, at=1e300).text


def test_a_message_names_the_fault_explains_by_factors_and_links_to_the_page():
    like = "most like bearing, first seen on pump-1, ratio 1.04; then leak of pump-2, 8.2"
    link = "https://hub/ui/fleets/plant/devices/pump-3"
    named = replace(
        ALARM, fault="bearing", like=like, reasons=(("current", 12.34), ("flow", 3.0)), link=link
    )
    assert named.title == "pump-3: alarm, most like bearing"
    assert named.text == (
        "pump-3 behaves unusually since 2026-11-06 21:20:00 UTC. Score 12.5, limit 4. "
        "Most like bearing, first seen on pump-1, ratio 1.04. "
        "Most unusual: current (12.3 times its usual error), flow (3 times its usual error).\n"
        + link
    )
    ntfy = json.loads(WebhookChannel("http://a/t", preset="ntfy").body(named.plain()))
    assert ntfy["click"] == link
    template = '{"why": "${reasons}", "page": "${link}", "fault": "${fault}"}'
    said_ = json.loads(WebhookChannel("http://a", template=template).body(named.plain()))
    assert said_ == {"why": "current 12.34, flow 3.0", "page": link, "fault": "bearing"}


def test_a_message_leaves_out_inputs_with_no_more_than_their_usual_error():
    some = replace(ALARM, reasons=(("current", 94.3), ("flow", 0.218)))
    assert some.text.endswith("Most unusual: current (94.3 times its usual error).")
    weak = replace(ALARM, reasons=(("current", 0.9), ("flow", 0.8)))
    assert weak.text.endswith("Score 12.5, limit 4. No single input is unusual.")


def test_large_numbers_are_written_out():
    large = replace(ALARM, score=1390.4, reasons=(("current", 12345.0), ("flow", 840.4)))
    assert large.text.endswith(
        "Score 1,390, limit 4. Most unusual: current (12,345 times its usual error), "
        "flow (840 times its usual error)."
    )


def test_only_good_news_are_marked_as_such():
    marks = {}
    for event in ("alarm", "problem", "offline", "all clear", "problem over", "online"):
        plain = replace(ALARM, event=event).plain()
        body = json.loads(WebhookChannel("http://a/t", preset="ntfy").body(plain))
        marks[event] = body["tags"], SyslogChannel.line(plain).split(b">")[0]
    warning, good = (["warning"], b"<12"), (["ok"], b"<13")
    assert marks == dict.fromkeys(("alarm", "problem", "offline"), warning) | dict.fromkeys(
        ("all clear", "problem over", "online"), good
    )


def test_the_log_says_which_receiver_failed_without_its_secrets(tmp_path, caplog):
    with receiver(503) as server:
        channel = WebhookChannel(f"{server.url.rstrip('/')}/topic-7f3a")
        sink = DeliverySink(channel, tmp_path / "m.jsonl", backoff=quickly())
        sink.verdict(replace(said(0, alarm=True, score=12.5), episode=1))
        drained(sink)
    (failed,) = [each for each in caplog.records if "trying again" in each.getMessage()]
    assert failed.values["to"] == server.url.rstrip("/")
    mail = EmailChannel("mail.example", None, sender="a@b", recipients=["c@d"], password="word")
    assert str(mail) == "c@d by mail.example:587"
    assert str(ExecChannel(["/bin/horn", "--token", "word"])) == "/bin/horn"
    assert str(SyslogChannel("log.example")) == "syslog at log.example:514"


def test_a_sink_passes_on_what_the_agent_knows_of_an_alarm(tmp_path):
    got = []

    class Keeping:
        def send(self, message):
            got.append(message)

    sink = DeliverySink(Keeping(), tmp_path / "m.jsonl", link="https://hub/pump-3")
    alarm = replace(
        said(0, alarm=True, score=12.5), episode=1, fault="bearing", like="most like it"
    )
    sink.verdict(replace(alarm, carried=(("x", 9.0), ("y", 2.5))))
    sink.verdict(replace(said(1), limit=float("inf")))  # after a restart nothing is known yet
    drained(sink)
    alarm, clear = got
    assert (alarm["fault"], alarm["like"]) == ("bearing", "most like it")
    assert alarm["reasons"] == [["x", 9.0], ["y", 2.5]]
    assert alarm["link"] == clear["link"] == "https://hub/pump-3"
    assert (clear["event"], clear["limit"], clear["fault"]) == ("all clear", None, None)


def test_a_fault_that_is_recognized_within_an_episode_is_told_once(tmp_path):
    with receiver() as server:
        alarm = replace(said(0, alarm=True, score=12.5), episode=1)
        named = replace(alarm, fault="bearing", like="most like bearing, first seen on pump-1")
        for verdicts in ((alarm, named, named), (named, said(1))):  # and a restart
            sink = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl")
            for verdict in verdicts:
                sink.verdict(verdict)
            drained(sink)
        assert [each["event"] for each in server.bodies] == ["alarm", "recognized", "all clear"]
        assert server.bodies[1]["title"].endswith(": alarm, most like bearing")
        assert "Most like bearing, first seen on pump-1." in server.bodies[1]["text"]


def test_what_an_earlier_version_wrote_of_an_episode_is_understood(tmp_path):
    (tmp_path / "m.last").write_text("1")
    with receiver() as server:
        sink = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl")
        sink.verdict(replace(said(0, alarm=True, score=12.5), episode=1))
        sink.verdict(said(1))
        drained(sink)
        assert [each["event"] for each in server.bodies] == ["all clear"]


def test_a_summary_counts_and_names_the_first_few():
    storm = [replace(ALARM, device=f"pump-{n}") for n in range(1, 1001)]
    found = summarize("plant", [*storm, CLEAR], link="https://hub/ui/fleets/plant")
    assert found["title"] == "plant: 1000 alarms, 1 × all clear"
    assert found["text"] == (
        "1000 alarms: pump-1, pump-2, pump-3, pump-4, pump-5 and 995 more.\n"
        "1 × all clear: pump-3.\nhttps://hub/ui/fleets/plant"
    )
    assert (found["count"], found["event"]) == (1001, "alarm")
    events = ["problem"] * 3 + ["problem over"] * 2 + ["offline"] + ["all clear", "alarm"]
    mixed = [replace(CLEAR, event=event, device=f"pump-{i}") for i, event in enumerate(events)]
    found = summarize("plant", mixed)
    assert found["title"] == (
        "plant: 1 alarm, 3 problems, 1 × offline, 1 × all clear, 2 × problem over"
    )
    assert [line[:11] for line in found["text"].splitlines()[:2]] == ["1 alarm: pu", "3 problems:"]
    assert found["devices"][0] == "pump-7"
    few = summarize("plant", [ALARM, CLEAR], dropped=7)
    assert few["text"].splitlines() == [
        ALARM.text,
        CLEAR.text,
        "7 earlier events could not be kept.",
    ]
    assert summarize("plant", [ALARM])["text"] == ALARM.text


def test_people_hear_of_the_beginning_and_of_the_end_of_an_episode_once(tmp_path):
    with receiver() as server:
        sink = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl")
        sink.verdict(said(0))
        episode(sink, 1, 1)
        episode(sink, 2, 10)
        until(lambda: sink.outbox.delivered == 4, "four messages")
        sink.close()
        told = [(each["event"], each["episode"]) for each in server.bodies]
        assert told == [("alarm", 1), ("all clear", 1), ("alarm", 2), ("all clear", 2)]
        assert server.bodies[0]["inputs"] == ["x"]
        assert server.bodies[0]["score"] == 12.5


def test_a_restart_within_an_episode_tells_nothing_again_and_its_end_is_told(tmp_path):
    with receiver() as server:
        for first in (0, 10):
            sink = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl")
            episode(sink, 5, first, end=False)
            drained(sink)
        sink = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl")
        sink.verdict(said(20))
        until(lambda: len(server.got) == 2, "the end")
        sink.close()
        assert [each["event"] for each in server.bodies] == ["alarm", "all clear"]


def test_problems_with_the_data_are_told_when_they_begin_and_when_they_end(tmp_path):
    problem = Problem("stuck sensor", 1_794_000_000.0, "flow has not changed. Check it.", ("flow",))
    with receiver() as server:
        sink = DeliverySink(WebhookChannel(server.url), tmp_path / "spool")
        sink.problem("pump-3", ProblemEvent(problem))
        sink.problem("pump-3", ProblemEvent(problem, ended=1_794_000_600.0))
        until(lambda: len(server.got) == 2, "both")
        sink.close()
    began, ended = server.bodies
    assert (began["event"], began["at"], began["inputs"]) == ("problem", problem.since, ["flow"])
    assert "has a problem with its data since 2026-11-06" in began["text"]
    assert "Stuck sensor: flow has not changed. Check it." in began["text"]
    assert (ended["event"], ended["at"]) == ("problem over", 1_794_000_600.0)
    assert "pump-3" in ended["title"]


def test_another_episode_after_a_restart_is_told(tmp_path):
    with receiver() as server:
        for number in (5, 6):
            sink = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl")
            episode(sink, number, end=False)
            drained(sink)
        assert [each["episode"] for each in server.bodies] == [5, 6]


# outages


def test_what_a_receiver_does_not_take_is_sent_again_in_order(tmp_path, caplog):
    caplog.set_level("INFO")
    with receiver(503, 429, 401, 302) as server:
        sink = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl", backoff=quickly())
        episode(sink, 1)
        until(lambda: sink.outbox.delivered == 2, "both messages")
        sink.close()
        assert [each["event"] for each in server.bodies] == ["alarm"] * 5 + ["all clear"]
        assert {path for path, _, _ in server.got} == {"/"}
    assert caplog.text.count("trying again") == 1
    assert "delivered again" in caplog.text


@pytest.mark.parametrize("pieces", [(), (b"H",)], ids=["never", "slowly"])
@pytest.mark.parametrize("kind", ["webhook", "email"])
def test_a_receiver_that_answers_never_or_slowly_is_left_in_time(monkeypatch, kind, pieces):
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(delivery, "DEADLINE_S", 0.3)
    with dripping(*pieces) as port:
        channel: delivery.Channel = WebhookChannel(f"http://127.0.0.1:{port}")
        if kind == "email":
            channel = EmailChannel(
                "127.0.0.1", port, sender="a@b", recipients=["c@d"], security="none"
            )
        begun = monotonic()
        with pytest.raises(UndeliveredError) as failed:
            channel.send(ALARM.plain())
        assert monotonic() - begun < 2.0
        assert not failed.value.permanent


def test_a_wrong_token_is_retried_and_works_when_it_is_corrected(tmp_path):
    with receiver(401, 403) as server:
        sink = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl", backoff=quickly())
        episode(sink, 1, end=False)
        drained(sink)
        assert (sink.outbox.delivered, sink.outbox.refused, len(server.got)) == (1, 0, 3)


def test_what_is_refused_for_good_is_logged_and_holds_nothing_up(tmp_path, caplog):
    with receiver(400) as server:
        sink = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl", backoff=quickly())
        episode(sink, 1)
        until(lambda: sink.outbox.delivered == 1, "the second message")
        sink.close()
        assert (sink.outbox.refused, len(sink.outbox)) == (1, 0)
    assert "refused and is dropped" in caplog.text


def test_what_waits_survives_a_kill_and_arrives_after_the_outage(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    sink = DeliverySink(WebhookChannel(url), tmp_path / "m.jsonl", backoff=quickly())
    episode(sink, 1)  # then the process is killed: nothing is closed
    until(lambda: "refused" in sink.outbox.trouble, "an attempt")
    assert len(sink.outbox) == 2
    sink.close()
    with receiver() as server:
        again = DeliverySink(WebhookChannel(server.url), tmp_path / "m.jsonl", backoff=quickly())
        until(lambda: again.outbox.delivered == 2, "both messages")
        again.close()
        assert [each["event"] for each in server.bodies] == ["alarm", "all clear"]


def test_a_bug_of_a_channel_does_not_end_delivery(tmp_path):
    class Buggy:
        calls = 0

        def send(self, _message):
            self.calls += 1
            if self.calls == 1:
                raise KeyError("bug")

    sink = DeliverySink(Buggy(), tmp_path / "m.jsonl", backoff=quickly())
    episode(sink, 1)
    until(lambda: sink.outbox.delivered == 2, "both messages")
    sink.close()


# webhooks


def test_presets_templates_headers_and_secrets():
    with receiver() as server:
        ntfy = WebhookChannel(f"{server.url}/my-topic", preset="ntfy", token="tk_1")
        ntfy.send(ALARM.plain())
        WebhookChannel(server.url, preset="slack").send(replace(ALARM, device="a<b&c").plain())
        template = '{"msg": "${title}", "of": "${inputs}", "x": "${unknown}"}'
        own = WebhookChannel(f"{server.url}/in", template=template, headers=["X-Key: 7"])
        own.send(replace(ALARM, device='say "hi"').plain())
        (path, headers, _), _, (there, other, _) = server.got
        assert (path, headers["Authorization"]) == ("/", "Bearer tk_1")
        assert (there, other["X-Key"]) == ("/in", "7")
        first, second, third = server.bodies
        assert first["topic"] == "my-topic"
        assert (first["title"], first["priority"], first["tags"]) == (ALARM.title, 4, ["warning"])
        assert second["text"].startswith("a&lt;b&amp;c: alarm")
        assert second["blocks"][0]["text"]["type"] == "mrkdwn"
        assert third == {"msg": 'say "hi": alarm', "of": "current, flow", "x": "${unknown}"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WebhookChannel("ftp://a"), "expected http://"),
        (lambda: WebhookChannel("https://ntfy.example", preset="ntfy"), "ends with a topic"),
        (lambda: WebhookChannel("http://a", headers=["X"]), 'expected "Name: value"'),
        (lambda: WebhookChannel("http://a", headers=["X: a\r\nY: b"]), 'expected "Name: value"'),
        (lambda: EmailChannel("h", None, sender="me", recipients=["a@b"]), "expected one with @"),
        (lambda: ExecChannel([]), "expected a program"),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_an_alarm(make, words):
    with pytest.raises(SettingError, match=words):
        make()


# e-mail


class Mailbox:
    def __init__(self, refuse=""):
        self.refuse, self.mails = refuse, []

    async def handle_DATA(self, _server, _session, envelope):
        if self.refuse:
            return self.refuse
        self.mails.append(envelope)
        return "250 OK"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mail")
    key, cert = folder / "key.pem", folder / "cert.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names]
    subprocess.run(
        [*make, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=60
    )
    return cert, key


@contextmanager
def mail_server(handler, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def check(_server, _session, _envelope, _mechanism, data):
        right = (data.login, data.password) == (b"me", b"secret ")
        return AuthResult(success=right, handled=False)

    controller = Controller(
        handler, hostname="127.0.0.1", port=free_port(), tls_context=context,
        require_starttls=True, authenticator=check, auth_required=True,
    )  # fmt: skip
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()


def mail(server, certificate, password="secret "):
    return EmailChannel(
        "127.0.0.1", server.port, sender="pump@example.org",
        recipients=["a@example.org", "b@x.org"], username="me", password=password,
        ca_file=certificate[0],
    )  # fmt: skip


@pytest.mark.slow
def test_mail_goes_encrypted_and_with_a_login_to_all_recipients(certificate):
    box = Mailbox()
    with mail_server(box, certificate) as server:
        mail(server, certificate).send(ALARM.plain())
        (found,) = box.mails
        assert found.rcpt_tos == ["a@example.org", "b@x.org"]
        text = found.content.decode()
        assert "Subject: pump-3: alarm" in text
        assert "behaves unusually" in text
        with pytest.raises(UndeliveredError, match="535") as wrong:
            mail(server, certificate, "guess").send(ALARM.plain())
        assert not wrong.value.permanent  # the password may be corrected
        with pytest.raises(UndeliveredError, match="certificate"):
            EmailChannel("127.0.0.1", server.port, sender="a@b.org", recipients=["a@b.org"]).send(
                ALARM.plain()
            )


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "permanent"), [("451 later", False), ("554 spam", True)])
def test_a_mail_server_that_refuses(certificate, answer, permanent):
    with (
        mail_server(Mailbox(answer), certificate) as server,
        pytest.raises(UndeliveredError, match=answer) as refused,
    ):
        mail(server, certificate).send(ALARM.plain())
    assert refused.value.permanent is permanent


def test_no_mail_server_is_a_reason_to_try_again():
    channel = EmailChannel("127.0.0.1", free_port(), sender="a@b", recipients=["a@b"])
    with pytest.raises(UndeliveredError) as refused:
        channel.send(ALARM.plain())
    assert not refused.value.permanent


# programs and syslog


def test_no_shell_reads_what_a_program_gets(tmp_path):
    got, harm = tmp_path / "got", tmp_path / "harm"
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ['EDGEMERGE_TITLE'])"
    hostile = f"x; touch {harm} #$(touch {harm})`touch {harm}`\0"
    ExecChannel([sys.executable, "-c", code, str(got)]).send(replace(ALARM, device=hostile).plain())
    assert got.read_text() == f"{hostile[:-1]} : alarm"
    assert not harm.exists()


def test_a_program_gets_the_message_and_its_exit_code_counts(tmp_path):
    out = tmp_path / "out"
    script = (
        "import os, sys, pathlib as p; "
        "p.Path(sys.argv[1]).write_text(os.environ['EDGEMERGE_TITLE'] + sys.stdin.read())"
    )
    ExecChannel([sys.executable, "-c", script, str(out)]).send(ALARM.plain())
    title, _, rest = out.read_text().partition("{")
    assert title == "pump-3: alarm"
    assert json.loads("{" + rest)["episode"] == 7
    failing = ExecChannel([sys.executable, "-c", "import sys; sys.exit('no network')"])
    with pytest.raises(UndeliveredError, match="exited with 1: no network"):
        failing.send(ALARM.plain())
    with pytest.raises(UndeliveredError, match="No such file"):
        ExecChannel([str(tmp_path / "gone")]).send(ALARM.plain())
    with pytest.raises(UndeliveredError, match="timed out"):
        ExecChannel([sys.executable, "-c", "input()"], timeout_s=0.001).send(ALARM.plain())


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_syslog_has_the_form_of_rfc_5424(protocol):
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    with socket.socket(type=kind) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        channel = SyslogChannel("127.0.0.1", server.getsockname()[1], protocol=protocol)
        if protocol == "udp":
            channel.send(ALARM.plain())
            line = server.recv(4096)
        else:
            server.listen()
            thread = Thread(target=channel.send, args=(CLEAR.plain(),))
            thread.start()
            link, _ = server.accept()
            with link:
                size, _, line = link.makefile("rb").read().partition(b" ")
            thread.join()
            assert int(size) == len(line)
    priority = 12 if protocol == "udp" else 13
    event = "alarm" if protocol == "udp" else "all-clear"
    form = rf"<{priority}>1 \d{{4}}-\d\d-\d\dT\S+Z \S+ edgemerge \d+ {event} - pump-3: .+"
    assert re.fullmatch(form, line.decode())
    with pytest.raises(UndeliveredError):
        SyslogChannel("127.0.0.1", free_port(), protocol="tcp").send(ALARM.plain())


# configuration


def test_sinks_are_made_from_the_configuration(tmp_path):
    (tmp_path / "token").write_text("tk_1\n")
    (tmp_path / "password").write_text("secret\n")
    text = """
        device = "pump-3"
        state = "state"
        [projection]
        n_inputs = 2
        [[sinks]]
        kind = "webhook"
        url = "http://127.0.0.1:9/topic"
        preset = "ntfy"
        token_file = "token"
        [[sinks]]
        kind = "email"
        host = "127.0.0.1"
        sender = "pump@example.org"
        to = ["shift@example.org"]
        username = "me"
        password_file = "password"
        [[sinks]]
        kind = "exec"
        command = ["true"]
        [[sinks]]
        kind = "syslog"
    """
    (tmp_path / "a.toml").write_text(text)
    config = read_config(tmp_path / "a.toml", environment={})
    made = make_sinks(config)
    assert [type(sink) for sink in made] == [DeliverySink] * 4
    for sink in made:
        sink.close()
    for bad, words in (
        ("sinks.0.url=x", "sinks.0: found a url of another kind"),
        ("sinks.1.to=[]", "sinks.1.to"),
    ):
        wrong = read_config(tmp_path / "a.toml", environment={}, overrides=[bad])
        with pytest.raises(SettingError, match=words):
            make_sinks(wrong)
