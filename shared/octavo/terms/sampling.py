"""How tokens are chosen: every parameter, once as a model and once as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from octavo.terms.fields import (
    MAX_SEQUENCES,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
    LogitBias,
    Requested,
    StopString,
    TokenIds,
)

Temperature = Annotated[float, Field(ge=0.0, le=2.0)]
TopK = Annotated[int, Field(ge=0, lt=1 << 31)]
TopP = Annotated[float, Field(gt=0.0, le=1.0)]
MinP = Annotated[float, Field(ge=0.0, le=1.0)]
RepetitionPenalty = Annotated[float, Field(gt=0.0, le=10.0)]

NEUTRAL: dict[str, float | int] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Values of the parameters that a model may have defaults of, where neither the request nor the model says anything."""


class SamplingDefaults(BaseModel):
    """Sampling parameters of a model, which hold where a request says nothing. Any other is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None

    def given(self) -> dict[str, float | int]:
        """The parameters that the model says something about."""
        return self.model_dump(exclude_none=True)

    def all(self) -> dict[str, float | int]:
        """Every parameter, at the value that holds where a request says nothing."""
        return {**NEUTRAL, **self.given()}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.given().items())


class SamplingParams(Requested):
    """How tokens are chosen and when a sequence ends.

    `max_tokens=None` generates until the context is full. `temperature=0` is greedy. `top_k=0`, `top_p=1` and
    `min_p=0` switch the filters off; they apply in the order top-k, top-p, min-p. These and `repetition_penalty` are
    those of the model's generation_config.json where they are None, and off where that says nothing, too. Without a
    `seed` the job gets a random one at submission, so that a takeover continues the same random stream.

    `best_of` samples that many sequences and delivers the `n` with the best mean log-probability, the best first.
    `beam_width` searches for the most likely sequences instead of sampling and delivers the `n` best; a sequence scores
    the sum of its log-probabilities over (its length ** `length_penalty`), and `early_stopping` says when the search
    ends: True with `beam_width` finished sequences, False when a better one is unlikely, "never" when it is impossible.
    Both deliver everything at the end, and a takeover starts them over.

    `thinking_token_budget`: a thought is closed after so many tokens, and the model goes on with its answer.
    """

    n: int = Field(1, ge=1, le=MAX_SEQUENCES)
    best_of: int | None = Field(None, ge=1, le=MAX_SEQUENCES)
    beam_width: int | None = Field(None, ge=1, le=MAX_SEQUENCES)
    length_penalty: float = Field(1.0, ge=-10.0, le=10.0)
    early_stopping: bool | Literal["never"] = False
    max_tokens: int | None = Field(256, ge=0, le=1 << 24)
    min_tokens: int = Field(0, ge=0, le=1 << 24)
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    logit_bias: LogitBias = Field(default_factory=dict)
    stop: tuple[StopString, ...] = Field((), max_length=MAX_STOP_STRINGS, fail_fast=True)
    stop_token_ids: TokenIds = Field((), max_length=MAX_STOP_STRINGS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    thinking_token_budget: int | None = Field(None, ge=0, le=1 << 24)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_string(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is greater than max_tokens ({self.max_tokens})")
        return self

    @model_validator(mode="after")
    def _sampling_or_search(self) -> Self:
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) is less than n ({self.n})")
        if self.beam_width is None:
            if self.length_penalty != 1.0 or self.early_stopping is not False:
                raise ValueError("length_penalty and early_stopping belong to a beam search: give beam_width as well")
            return self
        if self.beam_width < self.n:
            raise ValueError(f"beam_width ({self.beam_width}) is less than n ({self.n})")
        if refused := [name for name in _NOT_WITH_BEAMS if not self._is_off(name)]:
            raise ValueError(f"a beam search takes no {', '.join(refused)}: leave that out")
        return self

    def _is_off(self, name: str) -> bool:
        value = getattr(self, name)
        return value is None or value == NEUTRAL.get(name, type(self).model_fields[name].default)

    @property
    def width(self) -> int:
        """Sequences that run at the same time."""
        return self.beam_width or self.best_of or self.n

    @property
    def is_held_back(self) -> bool:
        """Nothing is delivered before everything is generated: only then is it known which sequences are the best."""
        return self.beam_width is not None or (self.best_of or 0) > self.n


_NOT_WITH_BEAMS = ("best_of", "temperature", "top_k", "top_p", "min_p", "stop", "logprobs", "thinking_token_budget")


class SamplingFields(TypedDict, total=False):
    """The fields of `SamplingParams`, to be given one by one."""

    n: int
    best_of: int | None
    beam_width: int | None
    length_penalty: float
    early_stopping: bool | Literal["never"]
    max_tokens: int | None
    min_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    skip_special_tokens: bool
    seed: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    thinking_token_budget: int | None
