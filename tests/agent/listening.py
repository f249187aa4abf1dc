"""What tests of MQTT share: programs that are not ours, and what was heard."""

import json
import shutil
import subprocess
from contextlib import contextmanager
from threading import Event, Thread

from edgemerge.agent.judge import Verdict
from tests.services.missing import SERVICES, left_out
from tests.services.mosquitto import broker
from tests.waiting import DEADLINE_S, until


def said(index, *, alarm=False, score=1.0):
    return Verdict("pump-3", index, 60.0 + index, score, 4.0, alarm, "normal", ("x",) * alarm)


class Listener:
    """mosquitto_sub, a program that is not ours, and what it hears."""

    def __init__(self, port, *topics):
        program = shutil.which("mosquitto_sub")
        if program is None:
            left_out("mosquitto_sub", SERVICES)
        chosen = [word for topic in topics for word in ("-t", topic)]
        options = ["-h", "127.0.0.1", "-p", str(port), "-q", "1", "-F", "%r %t %p", *chosen]
        self.process = subprocess.Popen([program, *options], stdout=subprocess.PIPE, text=True)
        self.heard = []
        self.thread = Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        for line in self.process.stdout:
            retained, topic, payload = line.rstrip("\n").split(" ", 2)
            self.heard.append((retained == "1", topic, payload))

    def next(self, ending=""):
        """Give the first message whose topic ends so: whether retained, and what it says."""
        until(lambda: self.on(ending), f"a message on {ending or 'any topic'}")
        found = self.on(ending)[0]
        self.heard.remove(found)
        return found[0], json.loads(found[2])

    def on(self, ending):
        return [each for each in list(self.heard) if each[1].endswith(ending)]

    def close(self):
        self.process.terminate()
        self.process.wait(DEADLINE_S)
        self.thread.join(DEADLINE_S)
        self.process.stdout.close()


def publish(port, topic, payload, *options):
    where = ["-h", "127.0.0.1", "-p", str(port), "-t", topic, "-m", payload, "-q", "1"]
    subprocess.run(["mosquitto_pub", *where, *options], check=True, timeout=DEADLINE_S)


@contextmanager
def at_port(folder, port):
    with broker(folder, f"listener {port} 127.0.0.1", "log_type all") as own:
        yield own


class Hearing:
    """A source in a thread, and what it has read."""

    def __init__(self, source):
        self.source, self.stop, self.found = source, Event(), []
        self.thread = Thread(target=self.run)
        self.thread.start()

    def run(self):
        for reading in self.source.read(self.stop):
            self.found.append(reading.values.tolist())

    def close(self):
        self.stop.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
