"""Generation as a Celery task that takes no slot while the model runs.

    app = Celery("shop", broker=..., backend=..., include=["octavo.celery"])
    app.conf.octavo_url = "redis://localhost:6379"          # optional: as in `octavo.Client`

    from octavo.celery import generate
    generate.delay("Once upon a time", model="demo", max_tokens=64)
    chord(generate.s(prompt, model="demo") for prompt in prompts)(summarise.s())
    (generate.s("A title:", model="demo") | generate.s(model="demo")).delay()      # the second continues the first

The task puts a job into octavo's queue and looks again every few seconds, by re-scheduling itself; the job runs on
octavo's workers, batched with all others. It may be delivered any number of times: the job's idempotency key is the
task's id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn, cast

from celery import Task, shared_task

from octavo.blocking import Client
from octavo.client import DEFAULT_TENANT
from octavo.errors import QueueFull, ServerUnavailable
from octavo.handles import ensure_completed
from octavo.models import Result
from octavo.requests import RequestFields
from octavo.structs import as_dict

# Countdowns stay far below any visibility timeout, beyond which the broker would deliver the task a second time.
_FIRST_LOOK_S = 0.25
_LATEST_LOOK_S = 5.0


class GenerateTask(Task):  # type: ignore[misc]
    """One client a process and app; `octavo_url` and `octavo_tenant` come from the app's configuration."""

    @cached_property
    def client(self) -> Client:
        return Client(self.app.conf.get("octavo_url"), tenant=self.app.conf.get("octavo_tenant", DEFAULT_TENANT))

    def look_again(self, reason: Exception | None = None) -> NoReturn:
        looks = min(self.request.retries, 20)  # a job may take days: the power would outgrow a float
        raise self.retry(exc=reason, countdown=min(_FIRST_LOOK_S * 1.5**looks, _LATEST_LOOK_S))


@shared_task(  # type: ignore[untyped-decorator]
    bind=True,
    base=GenerateTask,
    name="octavo.generate",
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
    key = None if direct else f"celery:{task.request.id}"
    try:
        job = task.client.submit(_prompt(prompt), idempotency_key=key, **_restored(fields))
        if not direct and not task.request.is_eager and not job.info().status.is_terminal:
            task.look_again()
        result = task.client.result(job.id)
    except (QueueFull, ServerUnavailable) as error:
        task.look_again(error)
    ensure_completed(result.id, result.status, result.error)
    return _as_dict(result)


def _prompt(prompt: str | Sequence[int] | Mapping[str, Any] | None) -> str | Sequence[int] | None:
    return str(prompt["text"]) if isinstance(prompt, Mapping) else prompt


def _restored(fields: dict[str, Any]) -> RequestFields:
    """JSON, which Celery writes, knows no integer keys."""
    if fields.get("logit_bias"):
        fields = {**fields, "logit_bias": {int(token): bias for token, bias in fields["logit_bias"].items()}}
    return cast(RequestFields, fields)


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
