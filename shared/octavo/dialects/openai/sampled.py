"""How a body says in what way its tokens are chosen: the fields that all endpoints share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from octavo.dialects.openai.fields import Body
from octavo.terms.fields import MAX_STOP_STRINGS, LogitBias, Metadata, ModelName, Priority, StopString, TokenIds
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams

Seconds = Annotated[float, Field(gt=0, le=30 * 86400)]

_SPELLED_DIFFERENTLY = {"seed", "max_tokens", "logprobs"}


class SampledBody(Body):
    """OpenAI's sampling fields and those that vLLM added."""

    model: ModelName
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    logit_bias: LogitBias | None = None
    stop: StopString | Annotated[tuple[StopString, ...], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = (
        None
    )
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    metadata: Metadata | None = None

    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=10.0)
    min_tokens: int | None = Field(None, ge=0, le=1 << 24)
    ignore_eos: bool = False
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_STRINGS)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    add_special_tokens: bool = True
    priority: Priority = "normal"
    timeout_s: Seconds | None = None
    queue_timeout_s: Seconds | None = None

    def _sampling(self, *, max_tokens: int | None, **extra: Any) -> SamplingParams:
        """`extra` are the parameters that endpoints spell differently; those that are None are left out.

        Raises ValidationError for combinations that no single field shows.
        """
        named = (set(SamplingParams.model_fields) & set(type(self).model_fields)) - _SPELLED_DIFFERENTLY
        given = {name: getattr(self, name) for name in sorted(named)} | extra
        given = {name: value for name, value in given.items() if value is not None}
        if self.top_k == -1:  # vLLM's other way to say off
            given["top_k"] = 0
        if self.seed is not None:
            given["seed"] = self.seed % (1 << 63)
        return SamplingParams.model_validate({**given, "max_tokens": max_tokens})

    def _job(self, sampling: SamplingParams, **fields: Any) -> JobRequest:
        """`fields` are the prompt, and what else a job may have besides its sampling."""
        return JobRequest(
            model=self.model,
            sampling=sampling,
            priority=self.priority,
            add_special_tokens=self.add_special_tokens,
            timeout_s=self.timeout_s,
            queue_timeout_s=self.queue_timeout_s,
            metadata=self.metadata or {},
            **fields,
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else self.stop or ()
