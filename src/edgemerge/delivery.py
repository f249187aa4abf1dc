"""Alarms to people: webhook, e-mail, a program or syslog, when an episode begins and when it ends.

Messages wait in a queue on disk until the other side has taken them, so each is delivered at least
once, in order, also after an outage or kill -9. A message that is refused for good is logged and
dropped; everything else is retried with growing delays.
"""

from __future__ import annotations

import json
import logging
import os
import smtplib
import socket
import ssl
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from string import Template
from threading import Event, Thread, Timer
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
)

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.daemon import Backoff, in_context
from edgemerge.files import DiskQueue, to_json_line

TIMEOUT_S = 10.0  # without one byte
DEADLINE_S = 30.0  # for one message, however slowly bytes come
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 300.0
CLOSE_TIMEOUT_S = 2.0
SMTP_PORTS = {"starttls": 587, "tls": 465, "none": 25}
MAX_NAMED = 5  # devices named, or messages told in full, in a summary
EVENTS = {  # what is said of a device, and how
    "alarm": "behaves unusually",
    "recognized": "behaves unusually",
    "all clear": "behaves as usual again",
    "problem": "has a problem with its data",
    "problem over": "has no such problem with its data any more",
    "offline": "has not been heard from",
    "online": "is online again",
    "merge refused": "refused what other devices saw",
}
ALARMS = ("alarm", "recognized")
GOOD_NEWS = ("all clear", "problem over", "online", "test")
USUAL_FACTOR = 1.0  # an input with no more than its usual error carries no alarm
NONE_UNUSUAL = "no single input is unusual"
PERMANENT_CODES = (400, 404, 405, 410, 413, 415, 422)  # asking again would not help
SYSLOG_FACILITY, SYSLOG_WARNING, SYSLOG_NOTICE = 1, 4, 5  # user-level messages

logger = logging.getLogger(__name__)


class UndeliveredError(EdgemergeError, OSError):
    """A message was not taken; `permanent` means that it never will be."""

    def __init__(self, why: str, *, permanent: bool = False) -> None:
        """Say why."""
        super().__init__(why)
        self.permanent = permanent


def _why(error: Exception) -> str:
    """Return why a connection failed, in words without the number of the error."""
    reason = getattr(error, "reason", None)  # of the library's own error, around another
    reason = reason if isinstance(reason, Exception) else error
    return getattr(reason, "strerror", None) or str(reason) or repr(error)


@dataclass(frozen=True)
class Message:
    """What people are told of a device: an episode began ("alarm") or ended ("all clear"), or else.

    Args:
        event: "alarm" or "all clear"; "recognized" when it is known later which fault the alarm is
            like; of a server also one of the other `EVENTS`.
        device: The device.
        at: The time of the sample, in Unix seconds.
        episode: The number of the episode.
        score: The score of that sample; None if it has none.
        limit: The limit; None if there is none yet.
        inputs: The inputs that carry the alarm, the strongest first.
        pattern: The pattern that the samples form, if it is known.
        reasons: Inputs, each with how many times its usual error it has, the strongest first.
        fault: The name of the known fault that the alarm is most like, if it is like one.
        like: Words for that: which fault, and which device met it first.
        words: What else there is to say: which problem, or why a merge was refused.
        fleet: The fleet, if a server sends it.
        link: The address of a page about the device, if there is one.
    """

    event: str
    device: str
    at: float
    episode: int | None = None
    score: float | None = None
    limit: float | None = None
    inputs: tuple[str, ...] = ()
    pattern: str | None = None
    reasons: tuple[tuple[str, float], ...] = ()
    fault: str | None = None
    like: str | None = None
    words: str = ""
    fleet: str | None = None
    link: str | None = None

    @property
    def title(self) -> str:
        """A few words, for the title of a notification."""
        event = "alarm" if self.event in ALARMS else self.event
        named = f", most like {self.fault}" if self.fault and self.event in ALARMS else ""
        return _printable(f"{self.device}: {event}{named}")

    @property
    def text(self) -> str:
        """A few sentences for people."""
        said = _printable(" ".join(self._sentences()))
        return f"{said}\n{self.link}" if self.link else said

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON, with title and text."""
        return asdict(self) | {"title": self.title, "text": self.text}

    def _sentences(self) -> Iterator[str]:
        if self.event in EVENTS:
            yield f"{self.device} {EVENTS[self.event]} since {self._moment}."
        if self.score is not None and self.event in ALARMS:
            limit = "" if self.limit is None else f", limit {figure(self.limit)}"
            yield f"Score {figure(self.score)}{limit}."
        if self.like:
            first = self.like.partition(";")[0]
            yield f"{first[:1].upper()}{first[1:]}."
        if self.event in ALARMS and (self.reasons or self.inputs):
            found = ", ".join(self._explained())
            yield f"Most unusual: {found}." if found else f"{NONE_UNUSUAL.capitalize()}."
        if self.words:
            yield f"{self.words[:1].upper()}{self.words[1:].rstrip('.')}."

    def _explained(self) -> Iterator[str]:
        factors = dict(self.reasons)
        for name in self.inputs or factors:
            factor = factors.get(name)
            if factor is not None and factor <= USUAL_FACTOR:
                continue
            yield name if factor is None else f"{name} ({figure(factor)} times its usual error)"

    @property
    def _moment(self) -> str:
        try:
            return datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        except (OverflowError, ValueError, OSError):
            return f"{self.at:.0f}"


def figure(value: float) -> str:
    """Return a score or a factor with three digits, or with all that are before the point.

    >>> figure(12.345), figure(999.7), figure(1390.4)
    ('12.3', '1,000', '1,390')
    """
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def factor_words(inputs: Iterable[tuple[str, float]]) -> str:
    """Return inputs, each with its factor.

    >>> factor_words([("bearing", 1390.4), ("flow", 2.04)])
    'bearing ×1,390, flow ×2.04'
    """
    return ", ".join(f"{name} ×{figure(factor)}" for name, factor in inputs)


def unusual(inputs: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the inputs that carry an alarm: those with more than their usual error.

    >>> unusual([("current", 12.3), ("flow", 0.9)])
    [('current', 12.3)]
    """
    return [(name, factor) for name, factor in inputs if factor > USUAL_FACTOR]


def summarize(
    fleet: str, messages: Sequence[Message], *, dropped: int = 0, link: str | None = None
) -> dict[str, Any]:
    """Return several messages as one, in the form of `Message.plain`.

    A single message stays as it is. A few are told in full; many are counted, the urgent ones
    first.

    Args:
        fleet: The fleet.
        messages: At least one, the oldest first.
        dropped: How many more there were that could not be kept.
        link: The address of a page about the fleet, if there is one.

    >>> storm = [Message("alarm", f"pump-{n}", 0.0) for n in range(1, 1001)]
    >>> summarize("plant", storm)["title"]
    'plant: 1000 alarms'
    """
    counts = Counter(message.event for message in sorted(messages, key=_urgency))
    if len(messages) == 1 and not dropped:
        return messages[0].plain() | {"count": 1, "counts": dict(counts)}
    names = {
        event: list(dict.fromkeys(each.device for each in messages if each.event == event))
        for event in counts
    }
    title = ", ".join(_counted(number, event) for event, number in counts.items())
    lines = [
        f"{_counted(number, event)}: {_listed(names[event])}." for event, number in counts.items()
    ]
    if len(messages) <= MAX_NAMED:
        lines = [replace(message, link=None).text for message in messages]
    if dropped:
        lines.append(f"{dropped} earlier events could not be kept.")
    urgent = next((each for each in messages if each.event == "alarm"), messages[0])
    about = Message(
        urgent.event, "", messages[-1].at, fleet=fleet, link=link, words=" ".join(lines)
    )
    found = {"title": _printable(f"{fleet}: {title}"), "text": "\n".join(map(_printable, lines))}
    if link:
        found["text"] += f"\n{link}"
    first = list(dict.fromkeys(each.device for each in sorted(messages, key=_urgency)))[:MAX_NAMED]
    more = {"count": len(messages) + dropped, "counts": dict(counts), "devices": first}
    return asdict(about) | found | more


def _urgency(message: Message) -> tuple[bool, int]:
    """Sort alarms first, then other bad news, then good news."""
    return message.event in GOOD_NEWS, [*EVENTS, message.event].index(message.event)


def _counted(number: int, event: str) -> str:
    if event in ("alarm", "problem"):
        return f"{number} {event}" if number == 1 else f"{number} {event}s"
    return f"{number} × {event}"


def _listed(names: Sequence[str]) -> str:
    first, more = ", ".join(names[:MAX_NAMED]), len(names) - MAX_NAMED
    return f"{first} and {more} more" if more > 0 else first


def _printable(text: str) -> str:
    """Return one line of text: what cannot be printed would break headers and environments."""
    return "".join(each if each.isprintable() else " " for each in text)


class Channel(Protocol):
    """A way to people; as text it says where to, without secrets, for the log."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Deliver a message, as `Message.plain` returns it; raise UndeliveredError if it is not."""
        ...


class Outbox:
    """Sends messages in order, in a thread of its own; they wait on disk until they are taken.

    Args:
        channel: The way to people.
        spool: The file in which messages wait.
        backoff: The delays between two tries; 1 second to 5 minutes by default.
    """

    def __init__(self, channel: Channel, spool: Path, *, backoff: Backoff | None = None) -> None:
        """Start the thread, which sends what waits from before."""
        self._channel, self._spool = channel, DiskQueue(spool)
        self._backoff = backoff or Backoff(FIRST_RETRY_S, MAX_RETRY_S)
        self._news, self._closing = Event(), Event()
        self.delivered = self.refused = 0
        self.trouble = ""
        self._thread = Thread(target=in_context(self._work), name="delivery", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Count the messages that wait."""
        return len(self._spool)

    def add(self, message: Message) -> None:
        """Queue a message; it is on disk when this returns."""
        self._spool.add(to_json_line(message.plain()))
        self._news.set()

    def close(self) -> None:
        """Try once more to send what waits, for a second or two; the rest waits on disk."""
        self._closing.set()
        self._news.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _work(self) -> None:
        while True:
            self._news.clear()
            message = self._spool.first()
            if message is None:
                if self._closing.is_set():
                    return
                self._news.wait()
            elif not self._send(message):
                if self._closing.is_set():
                    return
                self._closing.wait(self._backoff.next())

    def _send(self, message: str) -> bool:
        try:
            self._channel.send(json.loads(message))
        except UndeliveredError as error:
            self._tell(str(error), permanent=error.permanent)
            if not error.permanent:
                return False
            self.refused += 1
        except Exception as error:  # noqa: BLE001 - a bug of a channel must not end delivery
            self._tell(repr(error), permanent=False)
            return False
        else:
            self.delivered += 1
            if self.trouble:
                logger.info("messages are delivered again", extra={"values": self._values()})
            self.trouble = ""
        self._backoff.reset()
        self._spool.done(message)
        return True

    def _tell(self, why: str, *, permanent: bool) -> None:
        values = {"why": why, **self._values()}
        if permanent:
            logger.error("a message was refused and is dropped", extra={"values": values})
        elif not self.trouble:
            logger.warning(
                "a message could not be delivered: trying again", extra={"values": values}
            )
        self.trouble = why

    def _values(self) -> dict[str, Any]:
        return {"to": str(self._channel), "waiting": len(self)}


class _NoRedirect(HTTPRedirectHandler):
    """Follow no redirect: a POST would become a GET, and secrets would go elsewhere."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None


class _Http(HTTPHandler):
    """Plain connections, which are added to `made` so that a deadline can cut them."""

    def __init__(self, made: list[HTTPConnection]) -> None:
        super().__init__()
        self._made = made

    def http_open(self, request: Request) -> Any:
        return self.do_open(self._connection, request)

    def _connection(self, host: str, **options: Any) -> HTTPConnection:
        self._made.append(HTTPConnection(host, **options))
        return self._made[-1]


class _Https(HTTPSHandler):
    """Likewise, encrypted."""

    def __init__(self, made: list[HTTPConnection], context: ssl.SSLContext) -> None:
        super().__init__()
        self._made, self._ssl = made, context

    def https_open(self, request: Request) -> Any:
        return self.do_open(self._connection, request)

    def _connection(self, host: str, **options: Any) -> HTTPConnection:
        self._made.append(HTTPSConnection(host, context=self._ssl, **options))
        return self._made[-1]


@contextmanager
def _deadline(sock: Callable[[], socket.socket | None]) -> Iterator[None]:
    """Cut the connection after `DEADLINE_S`: a timeout alone never ends one that drips bytes."""

    def cut() -> None:
        found = sock()
        if found is not None:
            with suppress(OSError):  # it is closed already
                found.shutdown(socket.SHUT_RDWR)

    timer = Timer(DEADLINE_S, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class WebhookChannel:
    """POST to a URL: our own JSON, the JSON of a preset, or a template.

    Args:
        url: Where to, http or https. For ntfy it ends with the topic.
        preset: "json" (all that is known), "ntfy", or "slack" for receivers that understand it.
        template: A body instead, in which ${title}, ${text}, ${device}, ${event}, ${at},
            ${episode}, ${score}, ${limit}, ${inputs}, ${reasons}, ${pattern}, ${fault}, ${like} and
            ${link} are replaced, each as it stands inside a JSON string.
        headers: More headers, each as "Name: value".
        token: A secret for the header Authorization: Bearer.
        ca_file: The certificates that the receiver's must come from; the system's by default.
    """

    def __init__(
        self,
        url: str,
        *,
        preset: str = "json",
        template: str | None = None,
        headers: Sequence[str] = (),
        token: str | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """Check what can be checked before there is an alarm."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError("found a url of another kind, expected http://… or https://…")
        self._url, self._preset, self._template = url, preset, template
        self._headers = {"Content-Type": "application/json", "User-Agent": "edgemerge"}
        for header in headers:
            name, colon, value = header.partition(":")
            if not colon or not name.strip() or not header.isprintable():
                raise SettingError(f'found the header "{header}", expected "Name: value"')
            self._headers[name.strip()] = value.strip()
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        if preset == "ntfy":
            root, _, self._topic = parts.path.rstrip("/").rpartition("/")
            if not self._topic:
                raise SettingError("found a url without one, expected a url that ends with a topic")
            self._url = urlunsplit((parts.scheme, parts.netloc, f"{root}/", "", ""))
        self._context = ssl.create_default_context(cafile=ca_file)

    def send(self, message: Mapping[str, Any]) -> None:
        """Deliver a message; any answer of 2xx means that it was taken, whatever its body says."""
        request = Request(self._url, self.body(message), self._headers, method="POST")
        made: list[HTTPConnection] = []
        opener = build_opener(_NoRedirect, _Http(made), _Https(made, self._context))
        try:
            with _deadline(lambda: made[-1].sock if made else None):
                opener.open(request, timeout=TIMEOUT_S).close()
        except HTTPError as error:
            error.close()
            words = f"the receiver answered {error.code} {error.reason}"
            raise UndeliveredError(words, permanent=error.code in PERMANENT_CODES) from error
        except (OSError, HTTPException) as error:
            raise UndeliveredError(_why(error)) from error

    def __str__(self) -> str:
        """Say where to; topics and hooks in the path of a URL are secrets."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def body(self, message: Mapping[str, Any]) -> bytes:
        """Return what is posted."""
        if self._template is not None:
            words = {name: _inside_json(value) for name, value in message.items()}
            return Template(self._template).safe_substitute(words).encode()
        return json.dumps(self._preset_body(message), ensure_ascii=False).encode()

    def _preset_body(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        alarm = message["event"] in ALARMS
        if self._preset == "ntfy":
            about = {"topic": self._topic, "title": message["title"], "message": message["text"]}
            tag = "ok" if message["event"] in GOOD_NEWS else "warning"
            about |= {"priority": 4 if alarm else 3, "tags": [tag]}
            return about | ({"click": message["link"]} if message.get("link") else {})
        if self._preset == "slack":
            title, text = (_slack(message[name]) for name in ("title", "text"))
            block = {"type": "section", "text": {"type": "mrkdwn", "text": f"*{title}*\n{text}"}}
            return {"text": f"{title}: {text}", "blocks": [block]}
        return message


def _inside_json(value: object) -> str:
    if isinstance(value, list | tuple):  # names, or names with factors
        words = (each if isinstance(each, str) else " ".join(map(str, each)) for each in value)
        value = ", ".join(words)
    return json.dumps("" if value is None else str(value), ensure_ascii=False)[1:-1]


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class EmailChannel:
    """E-mail by SMTP.

    Args:
        host: The mail server.
        port: Its port; 587 with STARTTLS, 465 with TLS, 25 without encryption by default.
        sender: The address in From.
        recipients: The addresses in To.
        security: "starttls" (the default), "tls", or "none" for a server on this machine.
        username: The name to log in with; no login without one.
        password: Its password.
        ca_file: The certificates that the server's must come from; the system's by default.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        *,
        sender: str,
        recipients: Sequence[str],
        security: str = "starttls",
        username: str | None = None,
        password: str | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """Check the addresses."""
        for address in (sender, *recipients):
            if "@" not in address or not address.isprintable():
                raise SettingError(f'found the address "{address}", expected one with @')
        self._place = host, port or SMTP_PORTS[security]
        self._sender, self._recipients = sender, list(recipients)
        self._security, self._login = security, (username, password)
        self._context = ssl.create_default_context(cafile=ca_file)

    def send(self, message: Mapping[str, Any]) -> None:
        """Deliver a message; it counts when the server has taken it for every recipient."""
        mail = EmailMessage()
        mail["Subject"], mail["From"] = message["title"], self._sender
        mail["To"] = ", ".join(self._recipients)
        mail["Date"] = datetime.now(UTC)
        mail.set_content(f"{message['text']}\n")
        made: list[smtplib.SMTP] = []
        try:
            with _deadline(lambda: made[-1].sock if made else None):  # noqa: SIM117 - it is first
                with self._connected(made) as server:
                    refused = server.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            raise UndeliveredError(
                f"refused: {error.recipients}", permanent=_all_5xx(error)
            ) from error
        except smtplib.SMTPResponseException as error:
            words = f"the mail server answered {error.smtp_code} {_text(error.smtp_error)}"
            # A wrong password is mended by a person, a message that is refused never.
            login = isinstance(error, smtplib.SMTPAuthenticationError)
            permanent = 500 <= error.smtp_code < 600 and not login
            raise UndeliveredError(words, permanent=permanent) from error
        except (OSError, smtplib.SMTPException) as error:
            raise UndeliveredError(_why(error)) from error
        for address, answer in refused.items():
            values = {"to": address, "why": answer}
            logger.warning("the mail server refused a recipient", extra={"values": values})

    def __str__(self) -> str:
        """Say where to."""
        return f"{', '.join(self._recipients)} by {self._place[0]}:{self._place[1]}"

    def _connected(self, made: list[smtplib.SMTP]) -> smtplib.SMTP:
        kind = _SmtpTls if self._security == "tls" else _Smtp
        options = {"context": self._context} if self._security == "tls" else {}
        server = kind(made, *self._place, timeout=TIMEOUT_S, **options)
        try:
            if self._security == "starttls":
                server.starttls(context=self._context)
            username, password = self._login
            if username is not None:
                server.login(username, password or "")
        except BaseException:
            server.close()
            raise
        return server


class _Smtp(smtplib.SMTP):
    """A connection that is added to `made` before it is open, so that a deadline can cut it."""

    def __init__(self, made: list[smtplib.SMTP], *place: Any, **options: Any) -> None:
        made.append(self)
        super().__init__(*place, **options)


class _SmtpTls(smtplib.SMTP_SSL):
    """Likewise, encrypted."""

    def __init__(self, made: list[smtplib.SMTP], *place: Any, **options: Any) -> None:
        made.append(self)
        super().__init__(*place, **options)


def _all_5xx(error: smtplib.SMTPRecipientsRefused) -> bool:
    return all(500 <= code < 600 for code, _ in error.recipients.values())


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


class ExecChannel:
    """Runs a program with the message as JSON on its standard input.

    Title, text and event are in EDGEMERGE_TITLE, EDGEMERGE_TEXT and EDGEMERGE_EVENT as well. An
    exit code other than 0 means that the message was not taken.

    Args:
        command: The program and its arguments; no shell reads them.
        timeout_s: The longest that it may run.
    """

    def __init__(self, command: Sequence[str], *, timeout_s: float = 60.0) -> None:
        """Check that there is a program."""
        if not command:
            raise SettingError("found an empty command, expected a program and its arguments")
        self._command, self._timeout_s = list(command), timeout_s

    def send(self, message: Mapping[str, Any]) -> None:
        """Deliver a message."""
        words = {
            f"EDGEMERGE_{name.upper()}": str(message[name]) for name in ("title", "text", "event")
        }
        try:
            done = subprocess.run(
                self._command,
                input=json.dumps(message).encode(),
                env=os.environ | words,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self._timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UndeliveredError(f"{self._command[0]}: {error}") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[-200:]
            raise UndeliveredError(f"{self._command[0]} exited with {done.returncode}: {said}")

    def __str__(self) -> str:
        """Name the program; its arguments may be secrets."""
        return self._command[0]


class SyslogChannel:
    """Syslog in the form of RFC 5424, by UDP or TCP.

    Args:
        host: The receiver.
        port: Its port; 514 by default.
        protocol: "udp" (the default; nothing says whether it arrived) or "tcp".
    """

    def __init__(self, host: str, port: int | None = None, *, protocol: str = "udp") -> None:
        """Remember where to."""
        self._place, self._protocol = (host, port or 514), protocol

    def send(self, message: Mapping[str, Any]) -> None:
        """Deliver a message."""
        line = self.line(message)
        try:
            if self._protocol == "tcp":
                with socket.create_connection(self._place, TIMEOUT_S) as link:
                    link.sendall(b"%d %b" % (len(line), line))  # RFC 6587: octet counting
                return
            found = socket.getaddrinfo(*self._place, type=socket.SOCK_DGRAM)[0]
            with socket.socket(found[0], socket.SOCK_DGRAM) as link:
                link.sendto(line, found[4])
        except OSError as error:
            raise UndeliveredError(str(error)) from error

    def __str__(self) -> str:
        """Say where to."""
        return f"syslog at {self._place[0]}:{self._place[1]}"

    @staticmethod
    def line(message: Mapping[str, Any]) -> bytes:
        """Return the line of a message."""
        severity = SYSLOG_NOTICE if message["event"] in GOOD_NEWS else SYSLOG_WARNING
        priority = 8 * SYSLOG_FACILITY + severity
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        host = socket.gethostname() or "-"
        kind = str(message["event"]).replace(" ", "-")
        head = f"<{priority}>1 {moment} {host} edgemerge {os.getpid()} {kind} -"
        text = " ".join(str(message["text"]).split())
        return f"{head} {message['title']}: {text}".encode()
