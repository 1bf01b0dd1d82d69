"""Ports to listen on, tried before anything is started."""

from __future__ import annotations

import errno
import os
import socket


def refusal(host: str, port: int) -> str | None:
    """Why this address cannot be listened on, with the option that chooses another. None if it can."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except socket.gaierror:
        return f"{host} is no address of this machine: choose another with --host"
    except PermissionError:
        return f"port {port} is for root alone: choose another with --port"
    except OSError as error:
        option = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
        return f"cannot listen on {host}:{port} ({os.strerror(error.errno or 0).lower()}): choose another with {option}"
    return None


def is_free(host: str, port: int) -> bool:
    return refusal(host, port) is None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
