"""OPC UA and Modbus against the libraries' own servers: types, bad values, reconnects, renames."""

import logging
import struct
import sys
from threading import Event, Thread
from time import monotonic, sleep

import pytest

from edgemerge.agent import industrial
from edgemerge.agent.config import read_config
from edgemerge.agent.factory import make_source
from edgemerge.agent.industrial import (
    ModbusLink,
    NodeValues,
    OpcUaAccess,
    OpcUaLink,
    PolledSource,
    Register,
    UnusableRowError,
    adjacent,
)
from edgemerge.cli import doctor
from edgemerge.core.errors import SettingError, install_command
from tests.agent.plants import ModbusPlant, OpcUaPlant, event_loop, make_certificate
from tests.cli.calls import call
from tests.services.ports import free_port
from tests.waiting import DEADLINE_S

TIMEOUT_S = 10.0  # for an answer on a machine that is very busy
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loop():
    with event_loop() as made:
        yield made


@pytest.fixture(scope="module")
def plant(loop, tmp_path_factory):
    pytest.importorskip("asyncua")
    logging.getLogger("asyncua").setLevel(logging.CRITICAL)
    made = OpcUaPlant(loop, tmp_path_factory.mktemp("plant"))
    yield made
    made.stop()


class Reading:
    """A source that is read in a thread, and what it has read."""

    def __init__(self, source):
        self.source, self.stop, self.rows, self.error = source, Event(), [], None
        self.thread = Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            for reading in self.source.read(self.stop):
                self.rows.append(reading)
        except SettingError as error:
            self.error = error

    def until(self, done, what):
        end = monotonic() + DEADLINE_S
        while not done():
            assert monotonic() < end, f"{what}: {self.source.waiting}; {self.source.why_skipped}"
            sleep(0.01)

    def more(self):
        """Wait for a row that is read from now on, and return its values."""
        count = len(self.rows) + 1  # one may be under way
        self.until(lambda: len(self.rows) > count, "another row")
        return self.rows[-1].values.tolist()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.stop.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


def polled(link, columns):
    return PolledSource(
        link, "the plant", columns, interval_s=0.01, timeout_s=TIMEOUT_S, first_retry_s=0.02
    )


def opcua(plant, *nodes, **access):
    found = [NodeValues.parse(each) for each in nodes]
    link = OpcUaLink(OpcUaAccess(plant.endpoint, **access), found, TIMEOUT_S)
    return Reading(polled(link, [name for each in found for name in each.names]))


def modbus(port, *registers, word_order="big", timeout_s=TIMEOUT_S):
    found = [Register.parse(each) for each in registers]
    options = {"unit_id": 7, "word_order": word_order, "timeout_s": timeout_s}
    link = ModbusLink(("127.0.0.1", port), found, **options)
    return Reading(polled(link, [each.name for each in found]))


def floats(*values, kind=">f"):
    return [cell for each in values for cell in struct.unpack(">2H", struct.pack(kind, each))]


def test_opcua_reads_numbers_truth_values_and_parts_of_arrays(plant):
    plant.reset(Flow=1.5, On=True, Count=7, Spectrum=[1.0, 2.0, 3.0])
    wanted = ("ns=2;s=Pump.Flow", "2:Pump/2:On", "2:Pump/2:Count", "2:Pump/2:Spectrum [1:3]")
    with opcua(plant, *wanted) as found:
        assert found.more() == [1.5, 1.0, 7.0, 2.0, 3.0]
        names = ("Pump.Flow", "On", "Count", "Spectrum[1]", "Spectrum[2]")
        assert found.rows[-1].names == names
        plant.set("Flow", 2.5)
        found.until(lambda: found.rows[-1].values[0] == 2.5, "the new value")


@pytest.mark.parametrize("status", ["BadSensorFailure", "UncertainLastUsableValue"])
def test_a_bad_status_leaves_the_row_out_and_says_which_node(plant, status):
    from asyncua.ua.status_codes import StatusCodes

    plant.reset(Flow=1.5, On=True)
    with opcua(plant, "2:Pump/2:Flow", "2:Pump/2:On") as found:
        found.more()
        plant.set("Flow", 9.0, getattr(StatusCodes, status))
        found.until(lambda: found.source.skipped >= 2, "skipped rows")
        assert found.source.why_skipped == f"node 2:Pump/2:Flow has the status {status}"
        assert 9.0 not in [row.values[0] for row in found.rows]
        plant.set("Flow", 3.0)
        assert found.more()[0] == 3.0
        assert found.rows[-1].skipped == found.source.skipped
        plant.set("Flow", float("nan"))
        found.until(lambda: "Flow is nan" in found.source.why_skipped, "not a number")


def test_a_bad_status_at_the_start_may_pass_whatever_the_node_is_called(plant):
    from asyncua.ua.status_codes import StatusCodes

    plant.reset(Flow=1.5, Flow_expected=1.5)
    plant.set("Flow_expected", 1.5, StatusCodes.BadWaitingForInitialData)
    with opcua(plant, "2:Pump/2:Flow", "2:Pump/2:Flow_expected") as found:
        found.until(lambda: found.source.skipped >= 2, "skipped rows")
        plant.set("Flow_expected", 2.5)
        assert found.more() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("2:Pump/2:Nosuch", "has no node 2:Pump/2:Nosuch, which may have been renamed"),
        ("ns=2;s=Nosuch", "has no node ns=2;s=Nosuch"),
        ("2:Pump/2:Name", "holds 'pump', expected a number"),
        ("2:Pump/2:Spectrum", r'expected one: choose elements, such as ".*Spectrum \[0:3\]"'),
        ("2:Pump/2:Spectrum [2:4]", "has 3 values, expected 4 or more"),
        ("2:Pump/2:Flow [0]", "has a single value, expected an array"),
    ],
)
def test_at_the_start_a_node_that_does_not_fit_is_an_error_that_names_it(plant, node, why):
    plant.reset(Flow=1.5, Name="pump", Spectrum=[1.0, 2.0, 3.0])
    with opcua(plant, "2:Pump/2:Flow", node) as found:
        found.thread.join(DEADLINE_S)
        with pytest.raises(SettingError, match=why):
            raise found.error
    assert found.rows == []


def test_a_node_renamed_later_is_a_problem_with_the_data_until_it_is_back(plant):
    plant.reset(Flow=1.5, On=True)
    with opcua(plant, "ns=2;s=Pump.Flow", "2:Pump/2:On") as found:
        found.more()
        plant.rename("Flow", "Durchfluss", 4.0)
        found.until(lambda: "has no node ns=2;s=Pump.Flow" in found.source.why_skipped, "a reason")
        assert "has no node ns=2;s=Pump.Flow" in found.source.waiting
        plant.rename("Durchfluss", "Flow", 5.0)
        assert found.more() == [5.0, 1.0]
        plant.rename("On", "Off", False)
        found.until(lambda: "has no node 2:Pump/2:On" in found.source.why_skipped, "a reason")
        assert found.error is None


def test_opcua_connects_again_after_the_server_was_gone(plant):
    plant.reset(Flow=1.5)
    with opcua(plant, "2:Pump/2:Flow") as found:
        found.more()
        plant.stop()
        found.until(lambda: "cannot be reached" in found.source.waiting, "a lost connection")
        plant.start()
        assert found.more() == [1.5]
        assert found.source.waiting == "the plant gives no usable values"


def test_opcua_with_password_and_encryption(plant, tmp_path):
    plant.reset(Flow=1.5)
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o600)
    make_certificate(tmp_path / "own.der", tmp_path / "own.pem", "urn:freeopcua:client")
    secure = {
        "username": "pump",
        "password_file": tmp_path / "password",
        "security_policy": "Basic256Sha256",
        "certificate_file": tmp_path / "own.der",
        "key_file": tmp_path / "own.pem",
        "server_certificate_file": plant.certificate,
    }
    with opcua(plant, "2:Pump/2:Flow", **secure) as found:
        assert found.more() == [1.5]
    (tmp_path / "password").write_text("wrong\n")
    with opcua(plant, "2:Pump/2:Flow", **secure) as found:
        found.until(lambda: "cannot be reached: " in found.source.waiting, "a refusal")
        assert found.rows == []


def test_stopping_does_not_wait_for_a_server_that_says_nothing():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with modbus(port, "holding 0", timeout_s=60.0) as found:
            connection, _ = silent.accept()
            began = monotonic()
            found.stop.set()
            found.thread.join(DEADLINE_S)
            assert monotonic() - began < 5.0
            connection.close()


def test_modbus_reads_every_type_with_scale_and_word_order(loop):
    cells = [
        *floats(1.5), 65535, 5, *floats(-7, kind=">i"), *floats(2**32 - 1, kind=">I"),
        *floats(0.25)[::-1],
    ]  # fmt: skip
    plant = ModbusPlant(loop, free_port(), registers=cells, bits=[True, False, True])
    wanted = (
        *("holding 0 float32", "input 2 int16 * 0.1", "holding 3", "holding 4 int32"),
        *("input 6 uint32 * -1", "coil 2", "discrete 1", "coil 0 * 4"),
    )
    try:
        with modbus(plant.port, *wanted) as found:
            expected = [1.5, -0.1, 5.0, -7.0, 1.0 - 2**32, 1.0, 0.0, 4.0]
            assert found.more() == pytest.approx(expected)
        with modbus(plant.port, "holding 8 float32", word_order="little") as found:
            assert found.more() == [0.25]
    finally:
        plant.close()


def test_modbus_exceptions_are_skipped_rows_and_a_wrong_address_is_an_error(loop):
    plant = ModbusPlant(loop, free_port(), registers=[1, 2])
    try:
        with modbus(plant.port, "holding 0", "holding 1") as found:
            assert found.more() == [1.0, 2.0]
            plant.code = 4  # device failure
            found.until(lambda: found.source.skipped >= 2, "skipped rows")
            assert "holding 0, holding 1: the device answers" in found.source.why_skipped
            plant.code = None
            assert found.more() == [1.0, 2.0]
            plant.code = 2  # illegal address, while it runs
            found.until(lambda: "does not have holding 0" in found.source.why_skipped, "a reason")
            plant.code = None
            assert found.more() == [1.0, 2.0]
            assert found.error is None
        with modbus(plant.port, "holding 500 float32") as found:
            found.thread.join(DEADLINE_S)
            assert "does not have holding 500: correct source.registers" in str(found.error)
    finally:
        plant.close()


def test_modbus_connects_again_after_the_device_was_gone(loop):
    port = free_port()
    plant = ModbusPlant(loop, port, registers=[1])
    with modbus(port, "holding 0", timeout_s=1.0) as found:
        found.more()
        plant.close()
        found.until(lambda: "cannot be reached" in found.source.waiting, "a lost connection")
        plant = ModbusPlant(loop, port, registers=[8])
        assert found.more() == [8.0]
        plant.close()


def test_the_doctor_reads_a_row_and_says_what_is_wrong(loop, tmp_path):
    plant = ModbusPlant(loop, free_port(), registers=[1, 2])
    where = f'kind = "modbus"\nport = {plant.port}\nunit_id = 7\ntimeout_s = 0.5\n'
    config = configured(tmp_path, where + 'registers = ["holding 0", "input 1"]')
    try:
        (found,) = doctor.check_source(config)
        assert (found.level, found.words) == ("ok", "gives 2 values: holding 0 1, input 1 2")
        config = configured(tmp_path, where + 'registers = ["holding 0", "input 900"]')
        (found,) = doctor.check_source(config)
        assert found.level == "fail"
        assert "does not have input 900" in found.words
    finally:
        plant.close()
    (found,) = doctor.check_source(config)
    assert (found.level, "cannot be reached" in found.words) == ("fail", True)


@pytest.mark.parametrize(
    ("extra", "package", "source"),
    [
        ("opcua", "asyncua", 'kind = "opcua"\nendpoint = "opc.tcp://x"\nnodes = ["i=1", "i=2"]'),
        ("modbus", "pymodbus", 'kind = "modbus"\nregisters = ["coil 1", "coil 2"]'),
    ],
)
def test_a_missing_extra_is_named_with_what_to_do(tmp_path, monkeypatch, extra, package, source):
    config = configured(tmp_path, source)
    monkeypatch.setitem(sys.modules, package, None)
    found = call("agent", config.file)
    assert found.exit_code == 1
    assert f"{package} is not installed: {install_command(extra)}" in found.stderr
    (finding,) = doctor.check_source(config)
    assert (finding.level, install_command(extra) in finding.words) == ("fail", True)


def test_a_late_row_is_not_made_up_for(monkeypatch):
    now, asked = [0.0], []

    class Slow:
        """A link whose second answer takes two and a half intervals."""

        async def open(self):
            pass

        async def read(self):
            asked.append(now[0])
            now[0] += 2.5 if len(asked) == 2 else 0.0
            return [1.0]

        async def close(self):
            pass

    async def sleep(_stop, wait_s):
        now[0] += max(0.0, wait_s)

    monkeypatch.setattr(industrial, "monotonic", lambda: now[0])
    monkeypatch.setattr(industrial, "_sleep", sleep)
    source, stop = PolledSource(Slow(), "here", ["a"], interval_s=1.0, timeout_s=9.0), Event()
    readings = source.read(stop)
    for _ in range(5):
        next(readings)
    stop.set()
    assert list(readings) == []
    assert asked == [0.0, 1.0, 3.5, 4.5, 5.5]


def test_requests_cover_registers_without_gaps_and_within_the_limit():
    many = [Register.parse(f"holding {i} float64") for i in range(0, 160, 4)]
    assert adjacent(many) == [("holding", 0, 124), ("holding", 124, 36)]
    apart = [Register.parse(each) for each in ("input 9", "input 7", "coil 1", "input 8 int32")]
    assert adjacent(apart) == [("coil", 1, 1), ("input", 7, 3)]


@pytest.mark.parametrize(
    "text",
    [
        *("holding", "holding x", "holding 1 text", "coil 1 int16", "holding 70000", "100"),
        *("holding 65535 float32", "input 1 * 1.2.3", "input 1 * .", "input 1 * 1e999"),
    ],
)
def test_a_register_that_cannot_be_is_refused(text):
    with pytest.raises(SettingError, match="expected TABLE ADDRESS TYPE, such as"):
        Register.parse(text)


def test_a_node_that_cannot_be_is_refused():
    for text in ("", "ns=2", "x=4"):
        with pytest.raises(SettingError, match="expected an id such as"):
            NodeValues.parse(text)
    with pytest.raises(SettingError, match=r"expected elements such as \[0:8\]"):
        NodeValues.parse("2:Pump [4:4]")
    assert NodeValues.parse("ns=3;s=Tags[3]").names == ("Tags[3]",)  # a name, not an element
    assert NodeValues.parse("ns=3;s=a;b=c").names == ("a;b=c",)
    assert NodeValues.parse("ns=2;i=5").names == ("ns=2;i=5",)
    with pytest.raises(UnusableRowError, match="holds None"):
        NodeValues.parse("i=1").values(None)


FILE = """
device = "pump-1"
state = "state"
[projection]
n_inputs = {inputs}
[source]
{source}
"""


def configured(folder, source, inputs=2):
    (folder / "agent.toml").write_text(FILE.format(source=source, inputs=inputs))
    return read_config(folder / "agent.toml", environment={})


def test_the_file_names_values_or_they_have_the_names_of_nodes(tmp_path):
    text = 'kind = "opcua"\nendpoint = "opc.tcp://plc:4840"\nnodes = ["2:A/2:B [0:2]"]\n'
    config = configured(tmp_path, text)
    assert config.source.columns == ("B[0]", "B[1]")
    assert isinstance(make_source(config), PolledSource)
    config = configured(tmp_path, text + 'columns = ["left", "right"]\nunits = ["bar", "bar"]')
    assert config.source.columns == ("left", "right")
    config = configured(tmp_path, 'kind = "modbus"\nregisters = ["input 4", "coil 1"]')
    assert config.source.columns == ("input 4", "coil 1")
    assert getattr(make_source(config), "waiting", "") == "127.0.0.1:502 was not reached yet"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('kind = "opcua"\nendpoint = "opc.tcp://plc"', "expected some for"),
        ('kind = "csv"\npath = "x"\nregisters = ["coil 1"]', "and none for others"),
        ('kind = "opcua"\nendpoint = "http://plc"\nnodes = ["i=1"]', "expected opc.tcp://"),
        (
            'kind = "opcua"\nendpoint = "opc.tcp://pump:geheim@plc"\nnodes = ["i=1"]',
            "(?!.*geheim)found a user in source.endpoint of .*: set source.username",
        ),
        ('kind = "modbus"\nregisters = ["input 4"]\ncolumns = ["a", "b"]', "expected 1: a name"),
        ('kind = "modbus"\nregisters = ["nosuch 4"]', "expected TABLE ADDRESS"),
        (
            'kind = "opcua"\nendpoint = "opc.tcp://x"\nnodes = ["i=1"]\n'
            'security_policy = "Basic256Sha256"',
            "needs source.certificate_file and source.key_file",
        ),
    ],
)
def test_what_cannot_be_is_refused_when_the_file_is_read(tmp_path, text, why):
    with pytest.raises(SettingError, match=why):
        configured(tmp_path, text, 1)


def test_rows_of_a_source_without_an_endpoint_are_refused(tmp_path):
    config = configured(tmp_path, 'kind = "opcua"\nnodes = ["i=1", "i=2"]')
    with pytest.raises(SettingError, match=r'source.kind = "opcua" needs source.endpoint'):
        make_source(config)
