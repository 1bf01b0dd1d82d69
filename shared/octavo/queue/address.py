"""The address of a Redis server as the settings give it: what it means, and how it is shown.

An address may hold passwords. `shown` is the one form that messages and logs get, and it is made of parts that are
known to hold none. An address that is refused is not shown at all: where a special character stands unescaped, any part
of it may be a piece of a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from octavo.terms.errors import ServerUnavailable

Node = tuple[str, int]

SENTINEL, CLUSTER, UNIX = "redis+sentinel", "redis+cluster", "unix"
_PORTS = {SENTINEL: 26379}
_SCHEMES = ("redis", "rediss", UNIX, SENTINEL, "rediss+sentinel", CLUSTER, "rediss+cluster")
_NODE = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])?(?::(\d{1,5}))?")
_SERVICE = re.compile(r"/([\w.-]+)(?:/(\d*))?")
_ESCAPE = "write special characters of a user name or a password as %40 for @, %23 for #, %2F for /, %3F for ?"


def _number(text: str) -> int:
    if not text.isdigit():
        raise ValueError
    return int(text)


def _positive(text: str) -> int:
    if (number := _number(text)) < 1:
        raise ValueError
    return number


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not float(text):
        raise ValueError
    return float(text)


def _truth(text: str) -> bool:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]


def _requirement(text: str) -> str:
    if text not in ("none", "optional", "required"):
        raise ValueError
    return text


_OPTIONS: dict[str, Callable[[str], Any]] = {
    "db": _number,
    "username": str,
    "password": str,
    "client_name": str,
    "max_connections": _positive,
    "timeout": _seconds,
    "socket_connect_timeout": _seconds,
    "socket_keepalive": _truth,
    "health_check_interval": _number,
}
_TLS_OPTIONS: dict[str, Callable[[str], Any]] = {
    "ssl_keyfile": str,
    "ssl_certfile": str,
    "ssl_password": str,
    "ssl_cert_reqs": _requirement,
    "ssl_check_hostname": _truth,
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_ca_data": str,
    "ssl_ciphers": str,
}
_SENTINEL_OPTIONS: dict[str, Callable[[str], Any]] = {"sentinel_username": str, "sentinel_password": str}
_DECIDED_HERE = frozenset(  # what redis-py knows besides
    (
        "socket_timeout", "socket_keepalive_options", "socket_read_size", "socket_type", "retry", "retry_on_timeout",
        "retry_on_error", "protocol", "legacy_responses", "encoding", "encoding_errors", "decode_responses",
        "parser_class", "connection_class", "credential_provider", "lib_name", "lib_version", "driver_info", "host",
        "port", "path", "single_connection_client", "ssl_min_version", "ssl_include_verify_flags",
        "ssl_exclude_verify_flags",
    )
)  # fmt: skip
_SECRETS = ("password", "ssl_password", "sentinel_password")


@dataclass(frozen=True)
class ServerAddress:
    """`nodes` are the server itself, Sentinels, or nodes of a cluster; a socket has a `path` instead."""

    scheme: str
    nodes: tuple[Node, ...]
    shown: str
    path: str = ""
    service: str = ""
    options: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> str:
        return self.scheme.replace("rediss", "redis")

    @property
    def has_tls(self) -> bool:
        return self.scheme.startswith("rediss")

    def without_secrets(self, text: str) -> str:
        """A server's words, which may repeat what they were an answer to."""
        for name in _SECRETS:
            if secret := self.options.get(name):
                text = text.replace(secret, "***")
        return text


def parse_address(url: str) -> ServerAddress:
    """Raises ServerUnavailable if this is no address; its message repeats nothing of it but names of options."""
    address = _parsed(url)
    if isinstance(address, str):
        raise ServerUnavailable(f"no address of a Redis server, such as redis://host:6379: {address}")
    return address


def shown(url: str) -> str:
    """An address for people: without credentials and options."""
    address = _parsed(url)
    return "the given address" if isinstance(address, str) else address.shown


def _parsed(url: str) -> ServerAddress | str:
    """The address, or what is wrong with it."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        return f"it must begin with one of {', '.join(f'{scheme}://' for scheme in _SCHEMES)}"
    place, _, query = rest.partition("?")
    authority, slash, path = place.partition("/")
    user, at, hosts = authority.rpartition("@")
    if "#" in rest or "@" in path or "@" in query:
        return _ESCAPE
    options = _options_of(query, scheme)
    if isinstance(options, str):
        return options
    name, _, password = user.partition(":")
    options |= {key: unquote(text) for key, text in (("username", name), ("password", password)) if text}
    has_credentials = bool(at) or any("user" in key or "password" in key for key in options)
    front = f"{scheme}://" + "***@" * has_credentials
    if scheme == UNIX:
        if hosts or not path:
            return "a socket is unix:///path/to/it, with three slashes"
        return ServerAddress(scheme, (), f"{front}/{path}", path="/" + unquote(path), options=options)
    return _of_nodes(scheme, front, hosts, slash + path, options)


def _of_nodes(scheme: str, front: str, hosts: str, path: str, options: dict[str, Any]) -> ServerAddress | str:
    kind = scheme.replace("rediss", "redis")
    nodes = _nodes_of(hosts, _PORTS.get(kind, 6379))
    if nodes is None:
        return f"what follows // must be a host or host:port; {_ESCAPE}"
    if len(nodes) > 1 and kind not in (SENTINEL, CLUSTER):
        return "several hosts are redis+sentinel://host,host/service or redis+cluster://host,host"
    service, database = "", path.removeprefix("/")
    if kind == SENTINEL:
        named = _SERVICE.fullmatch(path)
        if named is None:
            return "a Sentinel's is redis+sentinel://host:26379,host:26379/service, with /database after it if need be"
        service, database = named[1], named[2] or ""
    if database and not database.isdigit():
        return f"after the host comes the number of a database or nothing; {_ESCAPE}"
    if database:
        options.setdefault("db", int(database))
    if kind == CLUSTER and options.pop("db", 0):
        return "a cluster has one database: leave its number out"
    return ServerAddress(scheme, nodes, f"{front}{hosts}{path}", service=service, options=options)


def _nodes_of(hosts: str, port: int) -> tuple[Node, ...] | None:
    found = [_NODE.fullmatch(host) for host in hosts.split(",")]
    nodes = [((match[1] or "localhost").strip("[]"), int(match[2] or port)) for match in found if match]
    return tuple(nodes) if len(nodes) == len(found) and all(0 < number < 65536 for _, number in nodes) else None


def _options_of(query: str, scheme: str) -> dict[str, Any] | str:
    """As redis-py understands them, or what is wrong with one."""
    known = dict(_OPTIONS)
    if scheme.startswith("rediss"):
        known |= _TLS_OPTIONS
    if scheme.endswith("sentinel"):
        known |= _SENTINEL_OPTIONS
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in known:
            try:
                options.setdefault(name, known[name](text))
                continue
            except (ValueError, KeyError):
                pass
            return f"its option {name} has a value that it cannot have"
        if name in _TLS_OPTIONS:
            return f"its option {name} is for TLS: write rediss"
        if name in _DECIDED_HERE:
            return f"its option {name} is nothing to choose here: octavo decides it itself, leave it out"
        return f"one of its options is none of {', '.join(known)}; {_ESCAPE}"
    return options
