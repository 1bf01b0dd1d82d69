"""Queues of Celery tasks, so that a message can be published once more as Celery published it.

A connection that a message is published through has to declare where it goes. On Redis an exchange that was not
declared counts as a direct one, and a message for a topic goes nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue, binding

Entity = Queue | Exchange


def bound_to(app: Celery, exchange: str | None) -> list[Entity]:
    """Queues that an application's configuration has bound to an exchange. None for the default exchange, whose
    routing keys are names of queues."""
    if not exchange:
        return []
    return [_declared(queue) for queue in app.amqp.queues.values() if exchange in _exchanges_of(queue)]


def described(declared: Iterable[Any]) -> list[dict[str, Any]]:
    """Queues and exchanges as data that any serializer of tasks can write."""
    entities = [_declared(entity) for entity in declared if isinstance(entity, Queue | Exchange)]
    return [entity.as_dict(recurse=True) for entity in entities]


def entities_of(message: dict[str, Any]) -> list[Entity]:
    """Queues and exchanges to declare before a kept message goes out again; none for one of an earlier version."""
    return [_entity(fields) for fields in message.get("declare", ())]


def queue_names(message: dict[str, Any]) -> tuple[str, ...]:
    """The queues in which a kept message may wait, as far as they are known."""
    names = tuple(entity.name for entity in entities_of(message) if isinstance(entity, Queue))
    return names or (message["routing_key"],)


def _declared(entity: Entity) -> Entity:
    """A queue of a broadcast is one worker's own: its exchange stands for it."""
    return entity.exchange if isinstance(entity, Broadcast) else entity


def _exchanges_of(queue: Queue) -> set[str]:
    return {exchange.name for exchange in (queue.exchange, *(one.exchange for one in queue.bindings)) if exchange}


def _entity(fields: dict[str, Any]) -> Entity:
    if "type" in fields:
        return Exchange(**fields)
    bindings = [binding(**{**one, "exchange": Exchange(**one["exchange"])}) for one in fields["bindings"]]
    exchange = None if fields["exchange"] is None else Exchange(**fields["exchange"])
    return Queue(**{**fields, "exchange": exchange, "bindings": bindings})
