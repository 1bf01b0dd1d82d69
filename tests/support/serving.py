"""A gateway on a real port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from waiting import STALL_S

from octavo_gateway.app import create_app
from octavo_gateway.http.protocol import HttpProtocol
from octavo_gateway.settings import GatewaySettings


@contextmanager
def serving(settings: GatewaySettings) -> Iterator[str]:
    """The address of a gateway that runs in a thread of its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app = create_app(settings)
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, http=HttpProtocol, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the gateway did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(STALL_S)
            assert not thread.is_alive(), "the gateway did not stop"
