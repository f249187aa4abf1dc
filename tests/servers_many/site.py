"""A site behind nginx: two servers, a certificate, six fleets; and servers that only pretend."""

import socket
import ssl
import subprocess
import time
from contextlib import contextmanager
from threading import Thread
from urllib.request import urlopen

import httpx

from edgemerge import Projection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.connection import Connection, url_path
from edgemerge.exchange.http import HttpExchange
from tests.server.reporting import point, report
from tests.servers_many.workers import Worker
from tests.services.nginx import Nginx

SHARED = Projection(n_inputs=6, n_hidden=4)
FLEETS = tuple(f"fleet-{number}" for number in range(6))
CERTIFICATE = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    *("-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
)


class Site:
    """Two servers behind nginx with a certificate, and six fleets of one pump each."""

    def __init__(self, folder, nest, database):
        command = [*CERTIFICATE, "-keyout", "key.pem", "-out", "cert.pem"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        self.ca_file = folder / "cert.pem"
        self.workers = [Worker(nest, folder, database, number) for number in (1, 2)]
        ports = [worker.port for worker in self.workers]
        self.nginx = Nginx(folder / "nginx", ports, tls=folder)
        self.url = self.nginx.url
        self._token_file = folder / "admin.token"

    def open(self):
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.await_ready()
        self.nginx.start()
        self.token = self._token_file.read_text(encoding="utf-8").strip()
        operator = ServerClient(self.url, self.token, ca_file=self.ca_file)
        for fleet in FLEETS:
            operator.create_fleet(fleet, SHARED, reads="contributions")
        self.tokens = {fleet: self._enrolled(operator, fleet) for fleet in FLEETS}
        operator.close()

    def close(self):
        self.nginx.close()
        for worker in self.workers:
            worker.close()

    def exchange(self, fleet=FLEETS[0]):
        token, ca_file = self.tokens[fleet], self.ca_file
        return HttpExchange(self.url, fleet, token, projection=SHARED, ca_file=ca_file)

    def browser(self):
        """A browser that does not say from where a form is sent but by its origin."""
        trust = ssl.create_default_context(cafile=str(self.ca_file))
        return httpx.Client(base_url=self.url, verify=trust, timeout=30.0)

    def signed_in(self):
        browser = self.browser()
        form, headers = {"token": self.token}, {"Origin": self.url}
        answer = browser.post("/ui/sign-in", data=form, headers=headers)
        assert answer.status_code == 303, answer.text
        return browser, answer

    def report(self, fleet, score):
        words = report(time.time(), points=[point(time.time(), score)])
        asking = Connection(self.url, self.tokens[fleet], ca_file=self.ca_file)
        where = url_path("fleets", fleet, "devices", "pump", "report")
        kind = {"Content-Type": "application/json"}
        asking.ask("POST", where, body=words.model_dump_json().encode(), headers=kind).must_be(200)
        asking.close()

    def _enrolled(self, operator, fleet):
        invitation = operator.invite(fleet, "pump")["token"]
        hub = ServerClient(self.url, invitation, ca_file=self.ca_file)
        token = hub.enrol(fleet, "pump")["token"]
        hub.close()
        return token


def metric(worker, name):
    """What one server says of itself."""
    with urlopen(f"{worker.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@contextmanager
def listener(answer):
    """A server that takes requests and gives one answer to all; `asked` are their first lines."""
    listening, asked = socket.create_server(("127.0.0.1", 0)), []
    listening.settimeout(0.05)
    going = [True]

    def work():
        while going:
            try:
                there, _ = listening.accept()
            except TimeoutError:
                continue
            with there:
                there.settimeout(10)
                asked.append(there.recv(65536).split(b"\r\n")[0].decode())
                there.sendall(answer)

    thread = Thread(target=work)
    thread.start()
    try:
        yield listening.getsockname()[1], asked
    finally:
        going.clear()
        thread.join(10)
        listening.close()
