"""Ports at which nothing listens."""

import socket


def free_port() -> int:
    """Return a port of this machine at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
