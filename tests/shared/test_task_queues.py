"""Queues of Celery's messages survive as data."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("celery")

from celery import Celery
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast

from octavo.service.task_queues import bound_to, described, entities_of, queue_names

FILES = Exchange("files", type="topic", durable=False)
QUEUES = [
    Queue("celery"),
    Queue("media", FILES, routing_key="media.#"),
    Queue("ranked", Exchange("ranked"), routing_key="r", queue_arguments={"x-max-priority": 9}, max_length=5),
    Queue("both", bindings=[binding(FILES, routing_key="a.*"), binding(Exchange("more"), routing_key="b")]),
]


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.name)
def test_a_queue_is_the_same_once_it_was_written_and_read(queue: Queue) -> None:
    (again,) = entities_of({"declare": json.loads(json.dumps(described([queue])))})
    assert isinstance(again, Queue)
    (fields,), (wanted,) = described([again]), described([queue])
    for one in (fields, wanted):
        one["bindings"] = sorted(one["bindings"], key=lambda bound: str(bound["routing_key"]))  # a set
    assert fields == wanted


def test_of_a_broadcast_only_its_exchange_is_declared() -> None:
    (exchange,) = entities_of({"declare": described([Broadcast("everybody")])})
    assert isinstance(exchange, Exchange)
    assert (exchange.name, exchange.type) == ("everybody", "fanout")


def test_what_is_bound_to_an_exchange_is_found_by_either_way_of_saying_so() -> None:
    app = Celery(broker="memory://")
    app.conf.task_queues = [*QUEUES, Broadcast("everybody")]
    assert {entity.name for entity in bound_to(app, "files")} == {"media", "both"}
    assert [type(entity) for entity in bound_to(app, "everybody")] == [Exchange]
    assert bound_to(app, "") == bound_to(app, None) == bound_to(app, "unknown") == []


def test_a_message_waits_in_the_queues_that_it_was_declared_for() -> None:
    message = {"routing_key": "media.text", "declare": described(QUEUES[1:3])}
    assert queue_names(message) == ("media", "ranked")
    assert queue_names({"routing_key": "celery", "declare": []}) == ("celery",)
    assert queue_names({"routing_key": "celery"}) == ("celery",)  # kept by an earlier version
