"""Servers of the libraries for OPC UA and Modbus, on this machine, each in a thread of its own."""

import asyncio
from contextlib import contextmanager
from threading import Thread

from tests.services.ports import free_port
from tests.waiting import DEADLINE_S


class Loop:
    """An event loop in a thread; `run` waits for what runs in it."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work, timeout_s=15.0):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self):
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(DEADLINE_S)
        self.loop.close()

    async def _cancel_all(self):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def event_loop():
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()


class OpcUaPlant:
    """An OPC UA server with a pump; `nodes` by name. Making one takes two seconds."""

    def __init__(self, loop, folder):
        self._loop, self.port = loop, free_port()
        self.endpoint = f"opc.tcp://127.0.0.1:{self.port}"
        self.certificate, self.key = folder / "certificate.der", folder / "key.pem"
        self.nodes = {}
        loop.run(self._make(), 60.0)

    async def _make(self):
        from asyncua import ua
        from asyncua.crypto.permission_rules import User, UserRole
        from asyncua.server.server import Server
        from asyncua.server.user_managers import UserManager

        class Users(UserManager):
            """Lets in who gives no name, and `pump` with its password."""

            def get_user(self, iserver, username=None, password=None, certificate=None):  # noqa: ARG002 - as asyncua calls it
                known = username is None or (username, password) == ("pump", "secret")
                return User(role=UserRole.User, name=username) if known else None

        make_certificate(self.certificate, self.key)
        self.server = Server(user_manager=Users())
        await self.server.init()
        await self.server.set_application_uri(APPLICATION)
        self.server.set_endpoint(self.endpoint)
        policies = ua.SecurityPolicyType
        self.server.set_security_policy(
            [policies.NoSecurity, policies.Basic256Sha256_SignAndEncrypt]
        )
        await self.server.load_certificate(str(self.certificate))
        await self.server.load_private_key(str(self.key))
        space = await self.server.register_namespace("urn:plant")
        assert space == 2
        self.pump = await self.server.nodes.objects.add_object(2, "Pump")
        await self.server.start()

    def reset(self, **values):
        """Have just these nodes, with these values."""

        async def change():
            await self.server.delete_nodes(list(self.nodes.values()))
            self.nodes = {}
            for name, value in values.items():
                await self._add(name, value)

        self._loop.run(change())

    async def _add(self, name, value):
        from asyncua import ua

        where = ua.NodeId(f"Pump.{name}", 2)
        self.nodes[name] = await self.pump.add_variable(where, f"2:{name}", value)

    def set(self, name, value, status=0):
        from asyncua import ua

        data = ua.DataValue(ua.Variant(value), StatusCode=ua.StatusCode(status))
        nodeid = self.nodes[name].nodeid
        self._loop.run(self.server.write_attribute_value(nodeid, data))

    def rename(self, name, new, value):
        async def change():
            await self.server.delete_nodes([self.nodes.pop(name)])
            await self._add(new, value)

        self._loop.run(change())

    def stop(self):
        self._loop.run(self.server.stop())

    def start(self):
        self._loop.run(self.server.start())


APPLICATION = "urn:plant:server"


def make_certificate(certificate, key, uri=APPLICATION):
    """Write a certificate, signed by itself, and its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import NameOID

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "plant")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False
        )
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(built.public_bytes(serialization.Encoding.DER))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


class ModbusPlant:
    """A Modbus server: unit 7 has 20 holding and input registers, and 8 coils and inputs."""

    def __init__(self, loop, port, *, registers=(), bits=()):
        self._loop, self.port = loop, port
        self.code = None  # an exception code for every request, if it is set
        loop.run(self._start(list(registers), list(bits)))

    async def _start(self, registers, bits):
        from pymodbus.constants import ExcCodes
        from pymodbus.server import ModbusTcpServer
        from pymodbus.simulator import DataType, SimData, SimDevice

        cells = registers + [0] * (20 - len(registers))
        coils = bits + [False] * (16 - len(bits))
        blocks = (
            [SimData(0, values=coils, datatype=DataType.BITS)],
            [SimData(0, values=coils, datatype=DataType.BITS)],
            [SimData(0, values=cells, datatype=DataType.REGISTERS)],
            [SimData(0, values=cells, datatype=DataType.REGISTERS)],
        )

        async def act(_function, _start, _address, _count, _current, _new):
            return None if self.code is None else ExcCodes(self.code)

        device = SimDevice(7, simdata=blocks, action=act)
        self.server = ModbusTcpServer(device, address=("127.0.0.1", self.port))
        await self.server.serve_forever(background=True)

    def set(self, address, values):
        self._loop.run(self.server.async_setValues(7, 16, address, values))

    def close(self):
        self._loop.run(self.server.shutdown())
