"""Generation as a Celery task that takes no slot, and no message, while the model runs.

    app = Celery("shop", broker=..., backend=..., include=["octavo.celery"])
    app.conf.octavo_url = "redis://localhost:6379"          # optional: as in `octavo.Client`

    from octavo.celery import generate
    generate.delay("Once upon a time", model="demo", max_tokens=64)
    chord(generate.s(prompt, model="demo") for prompt in prompts)(summarise.s())
    (generate.s("A title:", model="demo") | generate.s(model="demo")).delay()      # the second continues the first

The task puts a job into octavo's queue and ends without a result; the job runs on octavo's workers, batched with all
others. Its end sends the task once more, which then finds the result. In between its message is kept in octavo's server
(`octavo.service.waiting_tasks`), where every Celery worker looks after it. A task that is revoked or expires cancels
its job. One whose message was lost, with a worker that was killed, is sent again after `octavo_recheck_s` seconds (30),
once no message waits in its queue. It may be delivered any number of times: the job's idempotency key is the task's id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn, cast

from celery import Celery, Task, bootsteps, shared_task
from celery.exceptions import Ignore
from celery.signals import before_task_publish, celeryd_init, task_revoked
from celery.states import FAILURE, READY_STATES, SUCCESS
from celery.worker import state as worker_state
from kombu import serialization
from kombu.exceptions import OperationalError, SerializationError
from redis.exceptions import RedisError

from octavo.client.asynchronous import DEFAULT_TENANT
from octavo.client.blocking import Client
from octavo.client.handles import ensure_completed
from octavo.client.requests import RequestFields
from octavo.queue.connection import connect_sync, default_url, outage
from octavo.service.task_queues import bound_to, described, entities_of, queue_names
from octavo.service.waiting_tasks import PREFIX, WaitingTasks
from octavo.terms.errors import QueueFull, RateLimited, ServerUnavailable
from octavo.terms.messages import JobStatus
from octavo.terms.models import Result
from octavo.terms.structs import as_dict

log = logging.getLogger(__name__)

NAME = "octavo.generate"
# Countdowns stay far below any visibility timeout, beyond which the broker would deliver the task a second time.
_FIRST_LOOK_S = 0.25
_LATEST_LOOK_S = 5.0
_RECHECK_S = 30.0
_WAIT_S = 1.0  # for a job to end, before revoked tasks are looked at again
_LATE_S = 30.0  # a task may submit its job after it was revoked, or has expired


class GenerateTask(Task):  # type: ignore[misc]
    """One client a process and app; `octavo_url` and `octavo_tenant` come from the app's configuration."""

    @cached_property
    def client(self) -> Client:
        return Client(self.app.conf.get("octavo_url"), tenant=self.app.conf.get("octavo_tenant", DEFAULT_TENANT))

    @cached_property
    def waiting(self) -> WaitingTasks:
        return _waiting(self.app)

    def look_again(self, reason: Exception | None = None) -> NoReturn:
        """Looks for the job's end again, later and later. Raises Celery's `Retry`."""
        looks = min(self.request.retries, 20)  # a job may take days: the power would outgrow a float
        countdown = min(_FIRST_LOOK_S * 1.5**looks, _LATEST_LOOK_S)
        declare = bound_to(self.app, (self.request.delivery_info or {}).get("exchange"))
        raise self.retry(exc=reason, countdown=countdown, **({"declare": declare} if declare else {}))

    def check_kept(self) -> None:
        """Let go of a message whose task has a result; send one again that is not kept, as its sender did not know
        how. Raises Ignore or Retry then."""
        if self.waiting.message(self.request.id) is not None:
            return
        if self.backend.get_state(self.request.id) in READY_STATES:
            raise Ignore
        self.look_again()

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        if status in (SUCCESS, FAILURE) and not self.request.is_eager:
            with suppress(RedisError):  # a worker drops it when it finds the result there
                self.waiting.drop(task_id)


@shared_task(  # type: ignore[untyped-decorator]
    bind=True,
    base=GenerateTask,
    name=NAME,
    max_retries=None,
    acks_late=True,
    reject_on_worker_lost=True,
)
def generate(task: GenerateTask, prompt: Any = None, **fields: Any) -> dict[str, Any]:
    """Generate text. Arguments are those of `octavo.Client.submit`; `prompt` may also be what this task returned.

    Returns `job_id`, `model`, `text`, `token_ids`, `finish_reason` of the first sequence, `texts` of all, and
    `usage`. Raises JobFailed if the job ends otherwise, InvalidRequest or UnknownModel if it cannot run at all; waits
    while the queue is full or the server away.
    """
    direct = task.request.called_directly  # as a function: without an id, and without retries
    waits = direct or task.request.is_eager
    key = None if direct else job_key(task.request.id)
    try:
        with _unavailable(task):
            if not waits:
                task.check_kept()
        job = task.client.submit(_prompt(prompt), idempotency_key=key, **cast(RequestFields, fields))
        if not waits and not job.info().status.is_terminal:
            raise Ignore  # until the job ends
        result = task.client.result(job.id)
    except (QueueFull, ServerUnavailable) as error:
        if isinstance(error, RateLimited) and not error.can_retry:
            raise
        task.look_again(error)
    ensure_completed(result.id, result.status, result.error)
    return _as_dict(result)


def job_key(task_id: str) -> str:
    """Idempotency key of a task's job. Whatever submits the same request with it, first or later, gets this job: a web
    process has its id at once, and the task its result."""
    return f"{PREFIX}{task_id}"


class Watcher(threading.Thread):
    """Sends tasks again whose jobs have ended, or whose messages were lost, and cancels the jobs of those that are
    revoked or expire. In every Celery worker, until `stop`."""

    def __init__(self, app: Celery) -> None:
        super().__init__(name="octavo-watcher", daemon=True)
        self._app = app
        self._waiting = _waiting(app)
        self._recheck_s = float(app.conf.get("octavo_recheck_s", _RECHECK_S))
        self._revoked: dict[str, float] = {}  # since when
        self._checked_at = 0.0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Within seconds."""
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.watch()
            except (RedisError, OSError, OperationalError) as error:
                log.warning("octavo tasks are not looked after: %s", outage(_url(self._app), error))
                self._stopping.wait(_WAIT_S)

    def watch(self) -> None:
        """One round. Waits for a second at most where nothing happens."""
        now = time.time()
        with suppress(RuntimeError):  # the set changed meanwhile
            self._revoked = {task_id: self._revoked.get(task_id, now) for task_id in worker_state.revoked}
        self._waiting.cancel_jobs([task_id for task_id, since in self._revoked.items() if since > now - _LATE_S])
        self._waiting.cancel_jobs(self._waiting.due(now, until=now - _LATE_S))
        for task_id in self._waiting.ended(_WAIT_S):
            if (message := self._message(task_id)) is not None:
                self._send(task_id, message)
        if time.monotonic() - self._checked_at > self._recheck_s:
            self._checked_at = time.monotonic()
            if self._waiting.takes_turn(self._recheck_s / 2):
                self._recheck()

    def _recheck(self) -> None:
        """Sends tasks again that ended unseen, or never began, unless messages wait in their queue: theirs may be
        there."""
        queued: dict[tuple[str, ...], bool] = {}
        while task_ids := self._waiting.unseen(time.time() - self._recheck_s):
            self._waiting.touch(task_ids, time.time())
            for task_id, status in zip(task_ids, self._waiting.job_states(task_ids), strict=True):
                message = self._message(task_id)
                if message is None or (status is not None and not status.is_terminal):
                    continue
                names = queue_names(message)
                if names not in queued:
                    queued[names] = any(map(self._has_messages, names))
                if not queued[names]:
                    self._send(task_id, message)

    def _message(self, task_id: str) -> dict[str, Any] | None:
        packed = self._waiting.message(task_id)
        try:
            return None if packed is None else _unpacked(packed, self._app)
        except (ValueError, SerializationError) as error:  # of another serializer, or damaged
            log.error("the message of task %s cannot be read: %s", task_id, error)
            self._waiting.drop(task_id)
            return None

    def _send(self, task_id: str, message: dict[str, Any]) -> None:
        (status,) = self._waiting.job_states([task_id])
        headers = {**message["headers"], "eta": None}
        if status is JobStatus.COMPLETED:  # in time
            headers["expires"] = None
        self._waiting.touch([task_id], time.time())
        conf = self._app.conf
        with self._app.producer_or_acquire() as producer:
            producer.publish(
                message["body"],
                exchange=message["exchange"],
                routing_key=message["routing_key"],
                serializer=conf.task_serializer,
                compression=conf.task_compression,
                delivery_mode=conf.task_default_delivery_mode,
                declare=entities_of(message),
                headers=headers,
                retry=False,
                **message["properties"],
            )

    def _has_messages(self, queue: str) -> bool:
        with self._app.connection_for_write() as connection:
            try:
                return bool(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:  # what is empty is not there
                return False


class WatchStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """A watcher in a Celery worker's main process."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **_: Any) -> None:
        self.watcher: Watcher | None = None

    def start(self, worker: Any) -> None:
        self.watcher = Watcher(worker.app)
        self.watcher.start()

    def stop(self, worker: Any) -> None:
        if self.watcher is not None:
            self.watcher.stop()

    terminate = stop


@celeryd_init.connect  # type: ignore[untyped-decorator]
def _add_watcher(instance: Any, **_: Any) -> None:
    instance.app.steps["worker"].add(WatchStep)


@before_task_publish.connect(sender=NAME)  # type: ignore[untyped-decorator]
def _keep(
    body: Any,
    exchange: str,
    routing_key: str,
    headers: dict[str, Any],
    properties: dict[str, Any],
    declare: Sequence[Any] | None = None,
    **_: Any,
) -> None:
    """Before the message goes: from then on it may be lost."""
    task: Any = generate
    properties = {name: value for name, value in properties.items() if value is not None}
    message = {
        "body": body,
        "exchange": exchange,
        "routing_key": routing_key,
        "headers": headers,
        "properties": properties,
        "declare": described(declare or bound_to(task.app, exchange)),
    }
    sent, due = _timestamp(headers.get("eta")) or time.time(), _timestamp(headers.get("expires"))
    try:
        task.waiting.keep(headers["id"], _packed(message, task.app), sent=sent, due=due)
    except (RedisError, OSError) as error:  # the worker that gets it does it then
        log.debug("task %s is not kept: %s", headers["id"], outage(_url(task.app), error))


@task_revoked.connect  # type: ignore[untyped-decorator]
def _cancel(sender: Any, request: Any, **_: Any) -> None:
    """A worker has let go of a task for good, maybe after it had submitted its job."""
    if sender.name == NAME:
        with suppress(RedisError, OSError):  # the watcher finds the job when it has ended
            sender.waiting.cancel_jobs([request.id])
            sender.waiting.drop(request.id)


def _url(app: Celery) -> str:
    return str(app.conf.get("octavo_url") or default_url())


def _waiting(app: Celery) -> WaitingTasks:
    tenant = app.conf.get("octavo_tenant", DEFAULT_TENANT)
    return WaitingTasks(connect_sync(_url(app)), tenant, app.main or "celery")


@contextmanager
def _unavailable(task: GenerateTask) -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise ServerUnavailable(outage(_url(task.app), error)) from error


def _packed(message: dict[str, Any], app: Celery) -> bytes:
    """By the serializer of the application's tasks, behind what it calls itself."""
    kind, encoding, data = serialization.dumps(message, app.conf.task_serializer)
    head = f"{kind} {encoding}\n".encode()
    return head + (data if isinstance(data, bytes) else data.encode())


def _unpacked(packed: bytes, app: Celery) -> dict[str, Any]:
    head, _, data = packed.partition(b"\n")
    kind, encoding = head.decode().split()
    accepted = serialization.prepare_accept_content([app.conf.task_serializer])
    message: dict[str, Any] = serialization.loads(data, kind, encoding, accept=accepted)
    return message


def _timestamp(moment: str | datetime | None) -> float | None:
    if moment is None:
        return None
    return (datetime.fromisoformat(moment) if isinstance(moment, str) else moment).timestamp()


def _prompt(prompt: str | Sequence[int] | Mapping[str, Any] | None) -> str | Sequence[int] | None:
    return str(prompt["text"]) if isinstance(prompt, Mapping) else prompt


def _as_dict(result: Result) -> dict[str, Any]:
    return {
        "job_id": result.id,
        "model": result.model,
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.sequences[0].finish_reason if result.sequences else None,
        "texts": [sequence.text for sequence in result.sequences],
        "usage": as_dict(result.usage),
    }
