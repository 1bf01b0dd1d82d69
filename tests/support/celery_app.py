"""A Celery application as a user would write it. Environment: TEST_REDIS, the server's address without database, and
TEST_BROKER, if that is another one."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

server = os.environ["TEST_REDIS"]
app = Celery(
    "shop", broker=os.environ.get("TEST_BROKER", f"{server}/1"), backend=f"{server}/2", include=["octavo.celery"]
)
app.conf.update(
    octavo_url=f"{server}/0",
    octavo_recheck_s=1,
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_queues=(
        Queue("celery"),
        Queue("media", Exchange("files", type="topic"), routing_key="media.#"),
        Queue("video", Exchange("files", type="topic"), routing_key="media.video"),
        Queue("news", Exchange("news", type="fanout")),
        Queue("ranked", Exchange("ranked"), routing_key="by-rank", queue_arguments={"x-max-priority": 9}),
    ),
)


@app.task
def lengths(results: list[dict[str, Any]]) -> list[int]:
    return [len(result["token_ids"]) for result in results]
