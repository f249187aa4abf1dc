"""The example of a configuration for nginx, with a real nginx, TLS and real servers behind it."""

import json
import socket
import ssl
import time
from threading import Thread

import httpx
import pytest

from edgemerge.core.errors import UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.connection import Connection, url_path
from edgemerge.exchange.http import HttpExchange
from tests.servers_many.site import FLEETS, SHARED, Site, listener, metric
from tests.servers_many.truth import share
from tests.services.nginx import Nginx

# One site for all.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("nginx")]

PAGES = 'edgemerge_requests_total{method="GET",route="/ui/fleets/{fleet}"'


@pytest.fixture(scope="module")
def site(tmp_path_factory, nest, postgres_server):
    postgres_server.run("create database behind_nginx")
    database = postgres_server.url_of("behind_nginx")
    made = Site(tmp_path_factory.mktemp("site"), nest, database)
    try:
        made.open()
        yield made
    finally:
        made.close()
        postgres_server.run("drop database behind_nginx with (force)")


def test_nginx_finds_nothing_wrong_with_it(site):
    said = site.nginx.check()
    assert "syntax is ok" in said
    assert "warn" not in said


def test_what_is_pushed_through_it_is_pulled_through_it(site):
    exchange = site.exchange()
    note = share(SHARED, "pump", "idle", 1)
    assert exchange.push(note)
    assert not exchange.push(note)
    told = HttpExchange(site.url, FLEETS[0], site.token, projection=SHARED, ca_file=site.ca_file)
    assert told.pull(Selection()).total == note.stats
    told.close()
    exchange.close()


def test_an_operator_signs_in_through_it_and_is_known_to_all_servers(site):
    browser, answer = site.signed_in()
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-edgemerge=")
    assert "Secure" in cookie
    opener = browser.get("/ui/sign-in", headers={"Cookie": ""})
    assert opener.headers["cross-origin-opener-policy"] == "same-origin", "it knows of https"
    for fleet in FLEETS * 2:
        assert browser.get(f"/ui/fleets/{fleet}").status_code == 200
    browser.close()


def test_a_report_is_seen_at_once_because_it_goes_where_the_page_is_looked_at(site):
    browser, _ = site.signed_in()
    with browser.stream("GET", f"/ui/fleets/{FLEETS[1]}/live") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 2000"
        (watched,) = [one for one in site.workers if metric(one, "edgemerge_watching")]
        site.report(FLEETS[1], 7.25)
        shown = next(line for line in lines if line.startswith("data:") and "7.2" in line)
    assert json.loads(shown.removeprefix("data:"))["rows"]
    assert metric(watched, 'edgemerge_reports_total{outcome="kept"}') >= 1
    browser.close()


def test_all_reports_and_pages_of_a_fleet_go_to_one_server(site):
    names = ('edgemerge_reports_total{outcome="kept"}', PAGES)
    browser = site.browser()
    for fleet in FLEETS[3:]:
        before = [[metric(worker, name) for name in names] for worker in site.workers]
        for score in range(4):
            site.report(fleet, 1.0 + score)
            assert browser.get(f"/ui/fleets/{fleet}").status_code == 303  # to sign in
        after = [[metric(worker, name) for name in names] for worker in site.workers]
        gained = [
            (new[0] - old[0], new[1] - old[1]) for old, new in zip(before, after, strict=True)
        ]
        assert sorted(gained) == [(0, 0), (4, 4)]
    browser.close()


@pytest.mark.parametrize("where", ["/healthz", "/ui/fleets/fleet-{}"], ids=["others", "fleets"])
def test_fleets_and_all_other_requests_are_spread_over_the_servers(site, where):
    before = [metric(worker, "edgemerge_requests_total") for worker in site.workers]
    browser = site.browser()
    for number in range(60):
        assert browser.get(where.format(number)).status_code in (200, 303)
    browser.close()
    after = [metric(worker, "edgemerge_requests_total") for worker in site.workers]
    gained = [new - old - 1 for old, new in zip(before, after, strict=True)]  # we asked, too
    assert sum(gained) == 60
    assert min(gained) > 0


def test_a_body_too_large_for_the_fleet_is_refused_by_the_server_in_words(site):
    asking = Connection(site.url, site.tokens[FLEETS[0]], ca_file=site.ca_file)
    where = url_path("fleets", FLEETS[0], "contributions", "pump", 0, "idle")
    reply = asking.ask("PUT", where, body=bytes(2 * 2**20))
    assert reply.status == 413
    assert "expected at most" in reply.json()["error"]
    asking.close()


def test_a_body_too_large_for_any_fleet_does_not_reach_a_server(site):
    trust = ssl.create_default_context(cafile=str(site.ca_file))
    with socket.create_connection(("127.0.0.1", site.nginx.port), 30) as plain:
        there = trust.wrap_socket(plain, server_hostname="127.0.0.1")
        words = f"PUT /fleets/a HTTP/1.1\r\nHost: a\r\nContent-Length: {64 * 2**20 + 1}\r\n\r\n"
        there.sendall(words.encode())
        assert b" 413 " in there.recv(2000).splitlines()[0]
        there.close()


def test_strangers_do_not_read_what_servers_count(site):
    browser = site.browser()
    assert browser.get("/metrics").status_code == 404
    assert browser.get("/healthz").json()["status"] == "ok"
    browser.close()


@pytest.mark.long
def test_while_a_server_is_killed_devices_push_and_pull_without_an_error(site):
    exchange, done = site.exchange(FLEETS[2]), []

    def work():
        for revision in range(1, 150):
            exchange.push(share(SHARED, "pump", "idle", revision))
            exchange.pull(Selection(receiver="pump"))
            done.append(revision)

    thread = Thread(target=work)
    thread.start()
    while len(done) < 20:
        time.sleep(0.005)
    site.workers[0].end()
    thread.join(120)
    exchange.close()
    assert done[-1] == 149
    site.workers[0].start()
    site.workers[0].await_ready()
    assert "prematurely closed" in site.nginx.log or "refused" in site.nginx.log


def test_what_is_safe_to_repeat_is_sent_to_the_next_server_and_what_is_not_is_not(tmp_path):
    with listener(b"") as (one, first), listener(b"") as (two, second):
        nginx = Nginx(tmp_path / "nginx", [one, two])
        nginx.start()
        browser = httpx.Client(base_url=nginx.url, timeout=30.0)
        try:
            assert browser.post("/fleets/a/invitations", content=b"{}").status_code == 502
            assert len(first + second) == 1
            assert browser.put("/fleets/a", content=b"1").status_code == 502
            assert len(first + second) == 3
        finally:
            browser.close()
            nginx.close()


def test_a_server_without_its_database_is_passed_over(tmp_path, site):
    away = b"HTTP/1.1 503 Away\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    with listener(away) as (port, asked):
        nginx = Nginx(tmp_path / "nginx", [site.workers[1].port, port])
        nginx.start()
        exchange = HttpExchange(nginx.url, FLEETS[3], site.tokens[FLEETS[3]], projection=SHARED)
        try:
            for revision in range(1, 40):
                exchange.push(share(SHARED, "pump", "busy", revision))
        finally:
            exchange.close()
            nginx.close()
    assert asked


def test_when_all_servers_are_gone_a_device_is_told_to_come_back(tmp_path):
    nginx = Nginx(tmp_path / "nginx", [1])
    nginx.start()
    exchange = HttpExchange(nginx.url, "pumps", "emd_token", projection=SHARED)
    try:
        with pytest.raises(UnavailableError, match="502"):
            exchange.push(share(SHARED, "pump", "busy", 1))
    finally:
        exchange.close()
        nginx.close()
