"""Roles on the server: the rule of each for `ACL SETUSER`, and a check of a user's rights.

Scripts run with the rights of their caller, so a role needs the commands in its scripts as well as those it sends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import redis

from octavo.queue.connection import is_denied
from octavo.queue.keys import Keys
from octavo.queue.scripts import script

_KEYS = Keys()
_TRIED = f"{_KEYS.prefix}:probe"  # holds a string, if anything: commands for other kinds of keys change nothing
_CHANNEL = _KEYS.channel("probe")
_IN_SCRIPT = re.compile(r"call\('([A-Z]+)'")
_CALLING = ("EVALSHA", "EVAL", "SCRIPT LOAD")
_READING = (
    "PING", "INFO", "EXISTS", "GET", "HEXISTS", "HGETALL", "HKEYS", "HLEN", "HMGET", "HVALS", "MGET", "XRANGE",
    "XREVRANGE", "XLEN", "ZCARD", "ZRANGE", "ZREVRANGEBYLEX", "SUBSCRIBE", "UNSUBSCRIBE",
)  # fmt: skip
# Workers about their memory and tokenizer; pins; dead letters; chats.
_ASKING = ("BLPOP", "EXPIRE", "HDEL", "HSET", "LTRIM", "RPUSH", "SET", "XDEL")
_TASKS = ("HGET", "XGROUP CREATE", "XREADGROUP", "ZADD", "ZRANGEBYSCORE", "ZREM", "ZREMRANGEBYSCORE")  # Celery


@dataclass(frozen=True)
class Role:
    name: str
    scripts: tuple[str, ...]
    sent: tuple[str, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """All that it needs, in alphabetical order."""
        inner = {name for part in self.scripts for name in _IN_SCRIPT.findall(script(part).source)}
        return tuple(sorted({*self.sent, *inner, *(_CALLING if self.scripts else ())}))

    @property
    def rule(self) -> str:
        """Its words after `ACL SETUSER <name>`, without a password."""
        keys = "~" if self.scripts else f"~{_KEYS.prefix} %R~"  # no key has this name, but scripts are called with it
        commands = " ".join("+" + name.lower().replace(" ", "|") for name in self.commands)
        return (
            f"on {keys}{_KEYS.prefix}* &{_KEYS.channel('*')} -@all +@connection -@dangerous +cluster|slots {commands}"
        )


# Batches and files are read; the storage's mark is agreed upon.
_OF_BATCHES = ("LLEN", "LRANGE", "SET", "ZCARD", "ZCOUNT", "ZRANGEBYLEX", "ZRANGEBYSCORE")
_OF_KEYS = (
    *("account_drop", "account_put", "key_change", "key_look", "key_put", "key_revoke", "key_rotate", "key_touch"),
    *("project_archive", "project_put"),
)
_LISTING = ("ZRANGEBYLEX", "ZRANK")  # keys, accounts, projects
_OF_CLIENTS = ("attach", "cancel", "detach", "enqueue", "erase", "mend")
ROLES = (
    # Clients of other languages follow with XREAD: docs/wire.md. Python's asks by a script whether it may do more.
    Role("reader", (), (*_READING, "XREAD", "EVALSHA", "SCRIPT LOAD")),
    Role("client", _OF_CLIENTS, _READING + _ASKING + _TASKS),
    Role(
        "gateway",
        (
            *(*_OF_CLIENTS, *_OF_KEYS, "batch_cancel", "batch_create", "file_drop", "file_note", "probe", "reap"),
            *(
                "delivery_resend",
                "endpoint_drop",
                "endpoint_put",
                "endpoint_rotate",
                "limit_tenant",
                "usage_read",
                "pause",
                "dead_purge",
            ),
        ),
        (*_READING, *_ASKING, *_OF_BATCHES, *_LISTING, "XLEN"),
    ),
    Role("administrator", ("dead_purge", "mend", "pause", *_OF_KEYS), (*_READING, *_LISTING)),  # `octavo keys`, `lanes`
    Role(
        "clerk",
        (
            *("batch_advance", "batch_begin", "batch_claim", "batch_close", "batch_commit", "batch_finish"),
            *("batch_recheck", "batch_release", "batch_renew", "cancel", "delivery_claim", "delivery_commit"),
            *("enqueue", "file_drop", "mend", "usage_fold"),
        ),
        _READING + _OF_BATCHES,
    ),
    Role(
        "worker",
        (
            *("append", "claim", "end_again", "finish", "heartbeat", "mend", "progress", "reap", "register_model"),
            "release",
        ),
        (*_READING, "BLPOP", "DEL", "EXPIRE", "LPOP", "RPUSH", "ZREM"),
    ),
)

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "PING": (),
    "TIME": (),
    "INFO": ("server",),
    "EVALSHA": (script("probe").sha, 0),
    "EVAL": ("return 1", 0),
    "SCRIPT LOAD": ("return 1",),
    "PUBLISH": (_CHANNEL, ""),
    "BLPOP": (_TRIED, 0.01),
    "EXPIRE": (_TRIED, 60),
    "HDEL": (_TRIED, "f"),
    "HEXISTS": (_TRIED, "f"),
    "HGET": (_TRIED, "f"),
    "HINCRBY": (_TRIED, "f", "x"),
    "HMGET": (_TRIED, "f"),
    "HSET": (_TRIED, "f", ""),
    "HSETNX": (_TRIED, "f", ""),
    "LINDEX": (_TRIED, 0),
    "LRANGE": (_TRIED, 0, 0),
    "LTRIM": (_TRIED, 0, 0),
    "RENAME": (_TRIED, _TRIED),
    "RPUSH": (_TRIED, ""),
    "SADD": (_TRIED, "m"),
    "SCAN": (0,),
    "HSCAN": (_TRIED, 0),
    "SISMEMBER": (_TRIED, "m"),
    "SREM": (_TRIED, "m"),
    "SET": (_TRIED, 1, "EX", 60),
    "ZCOUNT": (_TRIED, 0, 0),
    "ZLEXCOUNT": (_TRIED, "-", "+"),
    "ZRANGEBYLEX": (_TRIED, "-", "+"),
    "XADD": (_TRIED, "0-0", "f", ""),
    "XDEL": (_TRIED, "0-1"),
    "XRANGE": (_TRIED, "-", "+"),
    "XREAD": ("STREAMS", _TRIED, "0"),
    "XREVRANGE": (_TRIED, "+", "-"),
    "ZADD": (_TRIED, "x", "m"),
    "ZINCRBY": (_TRIED, "x", "m"),
    "ZRANGE": (_TRIED, 0, 0),
    "ZRANGEBYSCORE": (_TRIED, 0, 0),
    "ZRANK": (_TRIED, "m"),
    "ZREM": (_TRIED, "m"),
    "ZREMRANGEBYSCORE": (_TRIED, 0, 0),
    "ZREVRANGEBYLEX": (_TRIED, "+", "-"),
    "ZSCORE": (_TRIED, "m"),
}


def lacking(connection: redis.Redis, *names_of_roles: str) -> dict[str, list[str]]:
    """By role, of these or of all, the commands that the user of this connection may not call. Tries each, on a key
    that counts for nothing; the server notes what it refuses. Raises redis-py's errors if the server is lost."""
    roles = [role for role in ROLES if role.name in (names_of_roles or (role.name,))]
    needed = {name for role in roles for name in role.commands} - {"SUBSCRIBE", "UNSUBSCRIBE"}
    names = ["SET", *sorted(needed - {"SET", "EXPIRE", "DEL"}), "EXPIRE", "DEL"]
    pipeline = connection.pipeline(transaction=False)
    for name in names:
        pipeline.execute_command(  # type: ignore[no-untyped-call]
            *name.split(), *_ARGUMENTS.get(name, (_TRIED,))
        )
    replies = pipeline.execute(raise_on_error=False)
    denied = {name for name, reply in zip(names, replies, strict=True) if _denies(reply)}
    if not _may_subscribe(connection):
        denied.add("SUBSCRIBE")
    return {role.name: [name for name in role.commands if name in denied] for role in roles}


def _denies(reply: Any) -> bool:
    return isinstance(reply, Exception) and is_denied(reply)


def _may_subscribe(connection: redis.Redis) -> bool:
    with connection.pubsub() as channel:  # type: ignore[no-untyped-call]
        try:
            channel.subscribe(_CHANNEL)
            channel.get_message(timeout=10.0)
        except redis.ResponseError as error:
            return not is_denied(error)
    return True
