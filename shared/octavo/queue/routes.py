"""Where the server is right now: a fixed place, or the primary that Sentinels or the nodes of a cluster name.

All connections of a client share one `Route`. They ask it whenever they connect, hang up when the server says that it
is not the primary any more, and connect again.
"""

from __future__ import annotations

import random
from typing import Any, Protocol
from weakref import WeakSet

import redis
from redis import exceptions
from redis.crc import key_slot

from octavo.queue.address import CLUSTER, SENTINEL, Node, ServerAddress
from octavo.queue.keys import Keys

_SLOT = key_slot(Keys().prefix.encode())
_NOT_HERE = (exceptions.ReadOnlyError, exceptions.AskError, exceptions.TryAgainError, exceptions.ClusterDownError)


class _Connection(Protocol):
    node: Node | None

    def hang_up(self) -> None: ...


class Route:
    """The way to one server. `connections` are those that must follow when the primary changes."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.connections: WeakSet[Any] = WeakSet()
        self.question: tuple[Any, ...] = ("CLUSTER", "SLOTS")
        self._nodes = set(address.nodes)
        self._hint: Node | None = None
        if address.kind == SENTINEL:
            self.question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)

    @property
    def is_fixed(self) -> bool:
        return self.address.kind not in (SENTINEL, CLUSTER)

    def candidates(self) -> list[Node]:
        """The nodes to ask, in this order: in a random one, so that a node that knows nothing is not asked for ever."""
        others = random.sample(sorted(self._nodes), len(self._nodes))
        return [self._hint, *others] if self._hint else others

    def asking(self) -> dict[str, Any]:
        """Options of a connection that asks."""
        options = {**self.address.options, "db": 0}
        if self.address.kind == SENTINEL:
            for name in ("username", "password"):
                options[name] = options.get(f"sentinel_{name}")
        return {name: value for name, value in options.items() if not name.startswith("sentinel_")}

    def named(self, asked: Node, reply: Any) -> Node | None:
        """The primary by a node's reply; None if it does not know."""
        if self.address.kind == SENTINEL:
            return (reply[0].decode(), int(reply[1])) if reply else None
        found = None
        for first, last, *nodes in reply:
            places = [(node[0].decode() if node[0] else asked[0], int(node[1])) for node in nodes]
            self._nodes.update(places)
            if first <= _SLOT <= last:
                found = places[0]
        return found

    def follow(self, primary: Node) -> None:
        """The primary is there: connections to another node hang up."""
        self._hint = None
        for connection in list(self.connections):
            if connection.node not in (None, primary):
                connection.hang_up()

    def told(self, node: Node | None, error: redis.ResponseError) -> Exception:
        """The error that an answer of `node` means: a lost connection if it came from the wrong place. It holds no
        password."""
        text = str(error)
        if isinstance(error, _NOT_HERE) and not self.is_fixed:
            if isinstance(error, exceptions.MovedError) and node is not None:
                self._hint = error.host.strip("[]") or node[0], error.port
            return redis.ConnectionError(f"the primary is elsewhere: {text}")
        clean = self.address.without_secrets(text)
        return error if clean == text else type(error)(clean)


class Search:
    """One search for the primary: `asking` is the node to ask next, or None if no one is left."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._waiting = route.candidates()
        self._asked: set[Node] = set()
        self._trouble = "none has heard of it"

    @property
    def asking(self) -> Node | None:
        self._waiting = [node for node in self._waiting if node not in self._asked]
        return self._waiting[0] if self._waiting else None

    def heard(self, node: Node, reply: Any) -> Node | None:
        """The primary, if it is certain. A node of a cluster may not have heard yet that the slot has moved: the one
        that it names is asked next, and must say so itself."""
        self._asked.add(node)
        named = self._route.named(node, reply)
        if named is None or named == node or self._route.address.kind == SENTINEL:
            return named
        self._waiting.insert(0, named)
        return None

    def failed(self, node: Node, error: Exception) -> None:
        self._asked.add(node)
        words = isinstance(error, exceptions.ResponseError)
        self._trouble = self._route.address.without_secrets(str(error)) if words else type(error).__name__

    def given_up(self) -> redis.ConnectionError:
        service = self._route.address.service
        who = f"no Sentinel names a primary of {service}" if service else f"no node names the primary of slot {_SLOT}"
        return redis.ConnectionError(f"{who}: {self._trouble}")
