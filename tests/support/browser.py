"""Pages in a real browser, on an origin of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from waiting import STALL_S

STRANGER = "evil.example"
"""A public name that points to this machine."""

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
_PAGE = """<!doctype html><meta charset="utf-8"><script type="module">
const told = (value) => fetch("/told", {{ method: "POST", body: JSON.stringify(value) }});
const given = {given};
try {{
{script}
}} catch (error) {{
  await told({{ error: String(error) }});
}}
</script>"""


def browser() -> str | None:
    """The program, if there is any."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


@contextmanager
def page(script: str, folder: Path, *, host: str = "localhost", **given: Any) -> Iterator[SimpleQueue[Any]]:
    """Words of a page, told by `told(...)` in its script, which has `given`. The page ends with the block."""
    told: SimpleQueue[Any] = SimpleQueue()
    document = _PAGE.format(given=json.dumps(given), script=script).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(document if self.path == "/" else b"")

        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        program = browser()
        assert program is not None
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
        resolved = f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1, MAP localhost 127.0.0.1"
        process = subprocess.Popen(
            [program, *flags, resolved, f"--user-data-dir={folder}", f"http://{host}:{server.server_port}/"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield told
        finally:
            process.terminate()
            process.wait(STALL_S)
            server.shutdown()
