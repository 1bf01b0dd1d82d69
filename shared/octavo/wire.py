"""Bytes to models and back: a versioned msgpack envelope with hard limits on reading.

Every message is one array `[version, kind, field, ...]`; fields at their default may be left off at the end. The
Lua scripts write the same form (a `Terminal` for a job that ends without an owner). Whatever is wrong with bytes
that are read, the answer is MalformedMessage: nothing here trusts its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args

import msgpack
from pydantic import BaseModel, ValidationError

from octavo.errors import MalformedMessage
from octavo.models import (
    Chunk,
    FinishReason,
    JobError,
    JobRequest,
    ModelCard,
    PrefixPin,
    Progress,
    Terminal,
    TokenLogprob,
    TopLogprob,
    Usage,
    WorkerInfo,
    WorkerMemory,
)

VERSION = 1
MAX_DEPTH = 12
MAX_BYTES = 64 << 20  # a result with log-probabilities is the largest message there is
MAX_ITEMS = 1 << 22
MAX_STRING_BYTES = 1 << 20
_READ_LIMITS: dict[str, Any] = {
    "raw": False,
    "strict_map_key": True,
    "max_array_len": MAX_ITEMS,
    "max_map_len": 1024,
    "max_str_len": MAX_STRING_BYTES,
    "max_bin_len": MAX_STRING_BYTES,
    "max_ext_len": 0,
}
_FINISH_REASONS = (None, *get_args(FinishReason))

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def encode_request(request: JobRequest) -> bytes:
    """Only what differs from the defaults, so the same request always gives the same bytes."""
    fields = request.model_dump(exclude_defaults=True)
    sampling = fields.get("sampling")
    if sampling and "logit_bias" in sampling:
        sampling["logit_bias"] = sorted(sampling["logit_bias"].items())  # map keys are strings on the wire
    return _encode("job", fields)


def decode_request(data: bytes) -> JobRequest:
    """Raises MalformedMessage."""
    fields = _one_map(_decode("job", data))
    sampling = fields.get("sampling")
    if isinstance(sampling, dict) and "logit_bias" in sampling:
        fields = {**fields, "sampling": {**sampling, "logit_bias": _guard(dict, sampling["logit_bias"])}}
    return _model(JobRequest, fields)


def encode_chunk(chunk: Chunk) -> bytes:
    return _encode("c", *_chunk_fields(chunk))


def decode_chunk(data: bytes) -> Chunk:
    """Raises MalformedMessage."""
    return _chunk(_decode("c", data))


def encode_terminal(terminal: Terminal) -> bytes:
    return _encode("e", *_terminal_fields(terminal))


def decode_terminal(data: bytes) -> Terminal:
    """Raises MalformedMessage."""
    return _terminal(_decode("e", data))


def decode_entry(data: bytes) -> Chunk | Terminal:
    """One entry of a token stream, whichever it is. Raises MalformedMessage."""
    kind, fields = _open(data)
    if kind == "c":
        return _chunk(fields)
    if kind == "e":
        return _terminal(fields)
    raise MalformedMessage(f"expected a stream entry, got a message of kind {kind!r}")


def encode_result(terminal: Terminal, chunks: Iterable[Chunk]) -> bytes:
    """The compact result: the end and all chunks in stream order, runs of one sequence merged."""
    return _encode("r", _terminal_fields(terminal), [_chunk_fields(chunk) for chunk in merge(chunks)])


def decode_result(data: bytes) -> tuple[Terminal, tuple[Chunk, ...]]:
    """Raises MalformedMessage."""
    terminal, chunks = _fields(_decode("r", data), 2, 2)
    return _terminal(_list(terminal)), tuple(_chunk(_list(fields)) for fields in _list(chunks))


def encode_error(error: JobError) -> bytes:
    return _encode("x", *_error_fields(error))


def decode_error(data: bytes) -> JobError:
    """Raises MalformedMessage."""
    return _error(_decode("x", data))


def encode_usage(usage: Usage) -> bytes:
    return _encode("use", *_usage_fields(usage))


def decode_usage(data: bytes) -> Usage:
    """Raises MalformedMessage."""
    return _usage(_ints(_decode("use", data)))


def encode_metadata(metadata: dict[str, str]) -> bytes:
    return _encode("meta", metadata)


def decode_metadata(data: bytes) -> dict[str, str]:
    """Raises MalformedMessage."""
    fields = _one_map(_decode("meta", data))
    if not all(isinstance(value, str) for value in fields.values()):
        raise MalformedMessage("metadata holds a value that is not a string")
    return fields


def encode_model(card: ModelCard) -> bytes:
    return _encode("model", card.model_dump())


def decode_model(data: bytes) -> ModelCard:
    """Raises MalformedMessage."""
    return _model(ModelCard, _one_map(_decode("model", data)))


def encode_worker(info: WorkerInfo) -> bytes:
    return _encode("worker", info.model_dump())


def decode_worker(data: bytes) -> WorkerInfo:
    """Raises MalformedMessage."""
    return _model(WorkerInfo, _one_map(_decode("worker", data)))


def encode_progress(progress: Progress) -> bytes:
    return _encode("p", progress.attempt, progress.tokens, progress.score, progress.finished, progress.text)


def decode_progress(data: bytes) -> Progress:
    """Raises MalformedMessage."""
    return _model(Progress, dict(zip(Progress.model_fields, _fields(_decode("p", data), 5, 5), strict=True)))


def encode_pin(pin: PrefixPin) -> bytes:
    return _encode("pin", pin.model_dump(exclude_none=True))


def decode_pin(data: bytes) -> PrefixPin:
    """Raises MalformedMessage."""
    return _model(PrefixPin, _one_map(_decode("pin", data)))


def encode_memory(memory: WorkerMemory) -> bytes:
    return _encode("memory", memory.model_dump())


def decode_memory(data: bytes) -> WorkerMemory:
    """Raises MalformedMessage."""
    return _model(WorkerMemory, _one_map(_decode("memory", data)))


def decode_live(data: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """A live message: (job id, entry id, entry) of every entry that one script call wrote for a subscriber.

    The scripts pack it without envelope, bytes throughout. Raises MalformedMessage.
    """
    try:
        rows = msgpack.unpackb(data, raw=True, max_array_len=MAX_ITEMS, max_map_len=0, max_ext_len=0)
        return [(job_id, entry_id, payload) for job_id, entry_id, payload in rows]
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedMessage("not a live message") from error


def merge(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The same tokens in the same order in as few chunks as possible."""
    runs: list[list[Chunk]] = []
    for chunk in chunks:
        last = runs[-1][-1] if runs else None
        fits = (
            last is not None
            and last.index == chunk.index
            and last.finish_reason is None
            and (last.logprobs is None) == (chunk.logprobs is None)
        )
        if fits:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return [run[0] if len(run) == 1 else _joined(run) for run in runs]


def _joined(run: Sequence[Chunk]) -> Chunk:
    logprobs = None if run[0].logprobs is None else tuple(item for chunk in run for item in chunk.logprobs or ())
    return Chunk(
        index=run[0].index,
        token_ids=tuple(token for chunk in run for token in chunk.token_ids),
        texts=tuple(text for chunk in run for text in chunk.texts),
        logprobs=logprobs,
        finish_reason=run[-1].finish_reason,
    )


def _encode(kind: str, *fields: Any) -> bytes:
    end = len(fields)
    while end and fields[end - 1] is None:
        end -= 1
    packed: bytes = msgpack.packb([VERSION, kind, *fields[:end]], use_bin_type=True)
    return packed


def _decode(kind: str, data: bytes) -> list[Any]:
    found, fields = _open(data)
    if found != kind:
        raise MalformedMessage(f"expected a message of kind {kind!r}, got {found!r}")
    return fields


def _open(data: bytes) -> tuple[str, list[Any]]:
    if not isinstance(data, bytes):
        raise MalformedMessage(f"expected bytes, got {type(data).__name__}")
    if len(data) > MAX_BYTES:
        raise MalformedMessage(f"message of {len(data)} bytes exceeds the limit of {MAX_BYTES}")
    try:
        message = msgpack.unpackb(data, **_READ_LIMITS)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedMessage(f"not a message of this protocol: {error}") from error
    if not isinstance(message, list) or len(message) < 2 or not isinstance(message[1], str):
        raise MalformedMessage("not a message of this protocol: no envelope")
    if type(message[0]) is not int or message[0] != VERSION:
        raise MalformedMessage(f"message version {message[0]!r} is not {VERSION}: upgrade the older side")
    return message[1], message[2:]


def _check_shape(message: dict[str, Any]) -> None:
    """Refuses deep nesting and extension types (timestamps pass msgpack's own limit), without recursion.

    Only for maps: the fields of arrays are read one by one, each as the type it has to be.
    """
    level: list[Any] = [message]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            for item in container.values() if isinstance(container, dict) else container:
                if isinstance(item, (list, dict)):
                    below.append(item)
                elif isinstance(item, (msgpack.Timestamp, msgpack.ExtType)):
                    raise MalformedMessage("extension types are not part of this protocol")
        if not below:
            return
        level = below
    raise MalformedMessage(f"message is nested deeper than {MAX_DEPTH}")


def _chunk_fields(chunk: Chunk) -> list[Any]:
    logprobs = None if chunk.logprobs is None else [_logprob_fields(item) for item in chunk.logprobs]
    return [chunk.index, chunk.token_ids, chunk.texts, logprobs, chunk.finish_reason]


def _chunk(fields: list[Any]) -> Chunk:
    """Every token of every stream passes here. Types are checked by hand, because a model takes what it can convert."""
    index, token_ids, texts, logprobs, finish_reason = _fields(fields, 3, 5)
    if len(_ints(token_ids)) != len(_strings(texts)):
        raise MalformedMessage("a chunk needs one text for every token")
    if logprobs is not None and len(_list(logprobs)) != len(token_ids):
        raise MalformedMessage("a chunk needs log-probabilities for every token or none")
    if finish_reason not in _FINISH_REASONS:
        raise MalformedMessage("a chunk has an unknown finish reason")
    return Chunk(
        index=_int(index),
        token_ids=tuple(token_ids),
        texts=tuple(texts),
        logprobs=None if logprobs is None else tuple(_logprob(item) for item in logprobs),
        finish_reason=finish_reason,
    )


def _terminal_fields(terminal: Terminal) -> list[Any]:
    return [
        terminal.status.value,
        _usage_fields(terminal.usage),
        None if terminal.error is None else _error_fields(terminal.error),
        None if terminal.prompt_logprobs is None else [_logprob_fields(item) for item in terminal.prompt_logprobs],
        terminal.prompt_token_ids,
    ]


def _terminal(fields: list[Any]) -> Terminal:
    status, usage, error, prompt_logprobs, prompt_token_ids = _fields(fields, 2, 5)
    return _model(
        Terminal,
        {
            "status": status,
            "usage": _usage(_ints(usage)),
            "error": None if error is None else _error(_list(error)),
            "prompt_logprobs": None if prompt_logprobs is None else [_logprob(x) for x in _list(prompt_logprobs)],
            "prompt_token_ids": None if prompt_token_ids is None else _ints(prompt_token_ids),
        },
    )


def _usage_fields(usage: Usage) -> list[int]:
    return [
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.recomputed_tokens,
        usage.restored_tokens,
    ]


def _usage(counts: list[int]) -> Usage:
    named = zip(Usage.model_fields, (count or 0 for count in _fields(counts, 3, 5)), strict=True)
    return _model(Usage, dict(named))


def _error_fields(error: JobError) -> list[Any]:
    return [error.code, error.message, error.param]


def _error(fields: list[Any]) -> JobError:
    code, message, param = _fields(fields, 2, 3)
    return _model(JobError, {"code": code, "message": message, "param": param})


def _logprob_fields(item: TokenLogprob) -> list[Any]:
    return [item.token_id, item.token, item.logprob, [[top.token_id, top.token, top.logprob] for top in item.top]]


def _logprob(value: Any) -> TokenLogprob:
    token_id, token, logprob, top = _fields(_list(value), 4, 4)
    alternatives = [_fields(_list(item), 3, 3) for item in _list(top)]
    return _model(
        TokenLogprob,
        {
            "token_id": _int(token_id),
            "token": token,
            "logprob": logprob,
            "top": [_model(TopLogprob, {"token_id": _int(i), "token": t, "logprob": p}) for i, t, p in alternatives],
        },
    )


def _fields(values: list[Any], least: int, most: int) -> list[Any]:
    if not least <= len(values) <= most:
        raise MalformedMessage(f"expected {least} to {most} fields, got {len(values)}")
    return values + [None] * (most - len(values))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedMessage(f"expected an array, got {type(value).__name__}")
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise MalformedMessage(f"expected an integer, got {type(value).__name__}")
    return value


def _ints(value: Any) -> list[int]:
    for item in _list(value):
        if type(item) is not int:
            raise MalformedMessage("expected an array of integers")
    return value  # type: ignore[no-any-return]


def _strings(value: Any) -> list[str]:
    for item in _list(value):
        if type(item) is not str:
            raise MalformedMessage("expected an array of strings")
    return value  # type: ignore[no-any-return]


def _one_map(fields: list[Any]) -> dict[str, Any]:
    (value,) = _fields(fields, 1, 1)
    if not isinstance(value, dict):
        raise MalformedMessage(f"expected a map, got {type(value).__name__}")
    _check_shape(value)
    return value


def _model(model: type[M], fields: dict[str, Any]) -> M:
    return _guard(model.model_validate, fields)


def _guard(make: Callable[..., T], value: Any) -> T:
    try:
        return make(value)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors(include_input=False, include_url=False)[0]["loc"])
        problem = error.errors(include_input=False, include_url=False)[0]["msg"]
        raise MalformedMessage(f"{where or 'message'}: {problem}") from None  # the cause would quote the prompt
    except (TypeError, ValueError) as error:
        raise MalformedMessage("a field has the wrong shape") from error
