"""Requests that can never run are refused on arrival. The message says what to change."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.messages import PRIORITIES, AddRequest, EngineSampling, RequestFailed
from octavo_worker.engine.sequence import Request

NEEDED = {
    "top_k": "filters",
    "top_p": "filters",
    "min_p": "filters",
    "min_tokens": "adjustments",
    "repetition_penalty": "adjustments",
    "presence_penalty": "adjustments",
    "frequency_penalty": "adjustments",
    "logit_bias": "adjustments",
    "logprobs": "logprobs",
    "prompt_logprobs": "logprobs",
}
"""Feature of a runner's kernels that a field of `EngineSampling` needs where it is not as by default."""
MASKS = "masks"
"""Feature that a grammar needs."""
FEATURES = frozenset({*NEEDED.values(), MASKS})
"""All that requests can ask for."""
_PLAIN = EngineSampling(seed=0, max_tokens=0)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that this engine can hold: tokens of a context, token ids, sequences at once, memory of a sequence; and
    `features`, what its kernels can. A beam search has at most `max_beams` (None: as many as can run)."""

    max_model_len: int
    vocab_size: int
    max_running: int
    capacity: Capacity
    features: frozenset[str] = FEATURES
    max_beams: int | None = None

    def room(self, request: AddRequest) -> int:
        """The most tokens that a sequence of this request can have."""
        if request.sampling.beam is not None and self.capacity.share:
            return self.capacity.device_tokens
        return self.capacity.longest or self.max_model_len


def refusal(request: AddRequest, limits: Limits) -> RequestFailed | None:
    """Why this request cannot run here, or None. One bad request must never reach the model and end the engine."""
    return (
        _bad_shape(request, limits)
        or _not_supported(request, limits.features)
        or _bad_ids(request, limits)
        or _too_long(request, limits)
    )


def _not_supported(request: AddRequest, features: frozenset[str]) -> RequestFailed | None:
    """The only place where a request is compared with what the device has: kernels that are not there would end the
    engine."""
    if features >= FEATURES:
        return None
    asked = {n: need for n, need in NEEDED.items() if getattr(request.sampling, n) != getattr(_PLAIN, n)}
    if request.grammar is not None:
        asked["grammar"] = MASKS
    for param, feature in asked.items():
        if feature not in features:
            message = f"{param} needs {feature}, which this worker's kernels do not have: leave {param} out"
            return RequestFailed(request.id, "not_supported", message, param)
    return None


def _bad_shape(request: AddRequest, limits: Limits) -> RequestFailed | None:
    if not request.prompt:
        return RequestFailed(request.id, "invalid_request", "prompt is empty: give at least one token", "prompt")
    if request.priority not in PRIORITIES:
        message = f"priority is {request.priority}: use 0 (high), 1 (normal) or 2 (batch)"
        return RequestFailed(request.id, "invalid_request", message, "priority")
    indices = {sequence.index for sequence in request.sequences}
    if not indices or len(indices) != len(request.sequences):
        return RequestFailed(request.id, "invalid_request", "sequences must have distinct indices, at least one", "n")
    if len(indices) > limits.max_running:
        message = f"n is {len(indices)}: this worker runs at most {limits.max_running} sequences at once"
        return RequestFailed(request.id, "invalid_request", message, "n")
    return _bad_beams(request, limits) if request.sampling.beam is not None else None


def _bad_beams(request: AddRequest, limits: Limits) -> RequestFailed | None:
    assert request.sampling.beam is not None
    width, wanted = request.sampling.beam.width, len(request.sequences)
    most = limits.max_running if limits.max_beams is None else limits.max_beams
    going_on = limits.vocab_size - sum(0 <= end < limits.vocab_size for end in set(request.sampling.stop_token_ids))
    message = None
    if width > going_on:
        message = f"beam_width is {width}: the vocabulary has only {going_on} tokens to go on with"
    elif not wanted <= width <= most:
        message = f"beam_width is {width}: use {wanted} (n) to {most}, what this worker runs at once"
    elif any(sequence.tokens for sequence in request.sequences):
        message = "a beam search starts from its prompt: give no generated tokens"
    return None if message is None else RequestFailed(request.id, "invalid_request", message, "beam_width")


def _bad_ids(request: AddRequest, limits: Limits) -> RequestFailed | None:
    lists: list[tuple[str, array[int] | list[int]]] = [("prompt", request.prompt)]
    lists += [("prompt", sequence.tokens) for sequence in request.sequences]
    lists += [("logit_bias", list(request.sampling.logit_bias))]
    for param, ids in lists:
        if ids and not _are_below(ids, limits.vocab_size):
            message = f"{param} has a token id outside 0..{limits.vocab_size - 1}, the model's vocabulary"
            return RequestFailed(request.id, "invalid_request", message, param)
    return None


def _are_below(ids: array[int] | list[int], end: int) -> bool:
    """True if all are from 0 to `end`, excluded, in one pass."""
    try:
        words = np.asarray(array("I", ids))
    except OverflowError:  # negative, or more than 32 bits
        return False
    return int(words.max()) < end


def _too_long(request: AddRequest, limits: Limits) -> RequestFailed | None:
    grows = 1 if request.sampling.max_tokens > 0 else 0
    published = max(len(sequence.tokens) for sequence in request.sequences)
    if published and published >= request.sampling.max_tokens:
        message = f"{published} tokens are already published, max_tokens is {request.sampling.max_tokens}"
        return RequestFailed(request.id, "invalid_request", message, "max_tokens")
    length = len(request.prompt) + published + grows
    room = f"{len(request.prompt)} tokens of prompt and {published} generated ones"
    if length > limits.max_model_len:
        limit = f"This model's maximum context length is {limits.max_model_len} tokens."
        message = f"{limit} However, {room} leave no room in it. Please reduce the length of the prompt."
        return RequestFailed(request.id, "prompt_too_long", message, "prompt")
    if missing := shortage(length, request, limits.capacity):
        return RequestFailed(request.id, "pool_too_small", f"{room} exceed {missing}", "prompt")
    return None


def shortage(tokens: int, request: AddRequest | Request, capacity: Capacity) -> str | None:
    """The memory that is too small for a sequence of so many tokens, and what to do; None if it is large enough. Beams
    must run together, so none of them is oversized."""
    if not capacity.holds(tokens):
        return f"this worker's KV memory of {capacity}"
    if request.sampling.beam is not None and capacity.is_oversized(tokens):
        return f"this worker's KV memory of {capacity.device_tokens} tokens for beams: raise --kv-memory or use best_of"
    return None
