"""Chromium, driven by a test over its own protocol: a page is opened, looked at, pressed and drawn into a picture."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from browser import browser
from waiting import STALL_S, eventually

Json = dict[str, Any]
AXE = Path(__file__).parent / "node/node_modules/axe-core/axe.min.js"


class Page:
    """One page. `problems` are what its console, its errors and its policy said."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._rest = b""
        self._ids = count(1)
        self._session = ""
        self.problems: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Json:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise. Raises AssertionError for what it throws."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> Any:
        """The first truthy value of an expression."""
        return eventually(lambda: self.run(condition), message=f"{condition} never held")

    def press(self, words: str, within: str = "body") -> None:
        """Clicks the button with these words once it is there."""
        buttons = f"[...document.querySelectorAll({json.dumps(within + ' button')})]"
        found = f"{buttons}.filter(b => b.textContent.trim() === {json.dumps(words)} && !b.disabled)"
        self.wait(f"{found}.length > 0")
        self.run(f"{found}[0].click()")

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def violations(self) -> list[Any]:
        """Rules of axe that the page breaks; none where npm has not installed it."""
        if not AXE.exists():
            return []
        self.run(AXE.read_text() + ";0")
        found = "violations.map(one => [one.id, one.nodes[0].html])"
        broken: list[Any] = self.run(f"axe.run().then(({{ violations }}) => {found})")
        return broken

    def style(self, *, dark: bool = False, width: int = 1280, height: int = 1100) -> None:
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def _receive(self) -> Json:
        while b"\0" not in self._rest:
            data = os.read(self._back, 1 << 20)
            assert data, "the browser is gone"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: Json = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: Json) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(json.dumps(params["entry"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A page of a browser of the test's own, with its profile in `folder`."""
    program = browser()
    assert program is not None
    there, to = os.pipe()
    back, here = os.pipe()

    def connect() -> None:
        os.dup2(there, 103)
        os.dup2(here, 104)
        os.dup2(103, 3)
        os.dup2(104, 4)

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    process = subprocess.Popen(
        [program, *flags, "--hide-scrollbars", f"--user-data-dir={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=connect,
        close_fds=False,
    )
    os.close(there)
    os.close(here)
    try:
        yield Page(to, back)
    finally:
        process.terminate()
        process.wait(STALL_S)
        os.close(to)
        os.close(back)
