"""A real RabbitMQ of a test's own. Debian's package `rabbitmq-server` has it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import eventually

from octavo.service.ports import free_port
from octavo.service.server import die_with_parent

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on PATH goes on as another user


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def rabbitmq(folder: Path) -> Iterator[str]:
    """Its address, until the context ends."""
    port, mapper, plugins = free_port(), free_port(), folder / "plugins"
    plugins.write_text("[].\n")
    env = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(mapper),
        "RABBITMQ_NODENAME": f"octavo{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    # The server would start a port mapper that outlives it, if there was none.
    names = subprocess.Popen(["epmd", "-port", str(mapper)], env=env, preexec_fn=die_with_parent())
    with (folder / "output").open("wb") as output:
        server = subprocess.Popen(
            [PROGRAM], env=env, stdout=output, stderr=subprocess.STDOUT, preexec_fn=die_with_parent()
        )
    try:
        eventually(lambda: _answers(port) or server.poll() is not None)
        assert server.poll() is None, (folder / "output").read_text()[-1000:]
        yield f"amqp://guest:guest@127.0.0.1:{port}//"
    finally:
        server.terminate()
        server.wait()
        names.terminate()
        names.wait()
