"""A large file goes up to a gateway and comes down again: seconds, and the gateway's memory above what it had idle.

    python benchmarks/files.py [--mb 200] [--rounds 3] [--out FILE]

The client sends and reads pieces of a megabyte; server, gateway, files and client share the cores and the disk.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import psutil

from octavo.service.ports import free_port
from octavo.service.server import EmbeddedServer
from octavo_worker.bench.report import encode, report, write
from octavo_worker.bench.service import Child

PIECE = os.urandom(1 << 19).hex().encode()
START_S, LOOK_S = 60.0, 0.01
BOUNDARY = "a-boundary"

T = TypeVar("T")


def form(size: int) -> tuple[bytes, bytes]:
    """Bytes before and behind the file in an upload."""
    fields = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    named = 'Content-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
    return f"{fields}--{BOUNDARY}\r\n{named}".encode(), f"\r\n--{BOUNDARY}--\r\n".encode()


def upload(address: str, size: int) -> tuple[str, str]:
    """The id of a file of `size` bytes, and its digest."""
    before, behind = form(size)
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        yield before
        for start in range(0, size, len(PIECE)):
            piece = PIECE[: size - start]
            digest.update(piece)
            yield piece
        yield behind

    connection = http.client.HTTPConnection(address, timeout=120)
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    headers["Content-Length"] = str(size + len(before) + len(behind))
    connection.request("POST", "/v1/files", pieces(), headers)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    return str(json.loads(body)["id"]), digest.hexdigest()


def download(address: str, file_id: str) -> str:
    """The digest of the file's content."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(f"http://{address}/v1/files/{file_id}/content", timeout=120) as answer:
        while piece := answer.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def watched(process: psutil.Process, idle: int, work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """The result of the work, its seconds, and the most memory of the process above `idle`."""
    most, is_over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not is_over.wait(LOOK_S):
            most = max(most, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    try:
        found = work()
    finally:
        seconds = time.perf_counter() - began
        is_over.set()
        watcher.join()
    return found, {"seconds": round(seconds, 2), "most_mb_above_idle": round((most - idle) / 1e6, 1)}


def measure(size: int, rounds: int) -> list[dict[str, Any]]:
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(EmbeddedServer())
        port = free_port()
        environment = os.environ | {"REDIS_URL": server.url, "OCTAVO_FILES": str(folder / "files")}
        command = ["-P", "-m", "octavo_gateway", "--port", str(port), "--no-clerk", "--log-level", "warning"]
        gateway = Child("gateway", command, environment, folder)
        stack.callback(gateway.stop)
        address = f"127.0.0.1:{port}"
        wait(f"http://{address}/livez", gateway)
        process = psutil.Process(gateway.process.pid)
        download(address, upload(address, 1 << 20)[0])  # code that is loaded at its first use is not memory of a file
        idle = process.memory_info().rss
        for turn in range(rounds):
            (file_id, sent), up = watched(process, idle, lambda: upload(address, size))
            came, down = watched(process, idle, lambda file_id=file_id: download(address, file_id))  # type: ignore[misc]
            assert came == sent, "other bytes came back"
            rows.append(
                {"turn": turn, "mb": size // 1_000_000, "idle_mb": round(idle / 1e6, 1), "up": up, "down": down}
            )
    return rows


def wait(url: str, gateway: Child) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        gateway.check()
        try:
            urllib.request.urlopen(url, timeout=5)
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the gateway does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200, help="of the file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    document = report("files", measure(asked.mb * 1_000_000, asked.rounds))
    print(encode(document))
    if asked.out is not None:
        write(document, asked.out)


if __name__ == "__main__":
    main()
