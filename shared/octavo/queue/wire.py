"""Bytes to messages and back: a versioned msgpack envelope with hard limits on reading.

Every frame is one array `[version, kind, field, ...]`; fields that are None may be left off at the end. A message of
`octavo.terms.messages` is its fields in their order; the pydantic models are one field, a map by name. The Lua scripts
write the same form (a `Terminal` for a job that ends without an owner). Input is not trusted: any flaw of a frame
raises MalformedMessage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgpack
import msgspec
from pydantic import BaseModel, ValidationError

from octavo.terms.errors import MalformedMessage
from octavo.terms.messages import (
    Chunk,
    JobError,
    Progress,
    QueueMessage,
    Terminal,
    TokenizerAnswer,
    TokenizerQuestion,
    Usage,
    WorkerMap,
)
from octavo.terms.models import JobRequest
from octavo.terms.problems import in_words
from octavo.terms.workers import ModelCard, PrefixPin, Traits, WorkerInfo, WorkerMemory

VERSION = 1
MAX_DEPTH = 12
MAX_BYTES = 64 << 20  # a result with log-probabilities is the largest message there is
MAX_ITEMS = 1 << 22
MAX_STRING_BYTES = 1 << 20
MAX_CONTAINERS = 65_536  # maps and arrays of a request: each costs a hundred times its bytes
_READ_LIMITS: dict[str, Any] = {
    "raw": False,
    "strict_map_key": True,
    "max_array_len": MAX_ITEMS,
    "max_map_len": 1024,
    "max_str_len": MAX_STRING_BYTES,
    "max_bin_len": MAX_STRING_BYTES,
    "max_ext_len": 0,
}
_PLAIN = {int, float, str, bytes, bool, type(None)}
_ENTRIES: dict[str, type[Chunk] | type[Terminal]] = {"c": Chunk, "e": Terminal}
_ENCODER = msgspec.msgpack.Encoder()

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def encode_request(request: JobRequest) -> bytes:
    """Only what differs from the defaults, so the same request always gives the same bytes."""
    fields = request.model_dump(exclude_defaults=True, exclude={"prompt"})
    if request.prompt is not None:  # as it is: a copy of a million token ids takes 20 ms
        fields = {"model": fields.pop("model"), "prompt": request.prompt, **fields}
    sampling = fields.get("sampling")
    if sampling and "logit_bias" in sampling:
        sampling["logit_bias"] = sorted(sampling["logit_bias"].items())  # map keys are strings on the wire
    return _encode("job", fields)


def decode_request(data: bytes) -> JobRequest:
    """Raises MalformedMessage."""
    fields = _map(_decode("job", data, MAX_CONTAINERS))
    sampling = fields.get("sampling")
    if isinstance(sampling, dict) and "logit_bias" in sampling:
        try:
            biases = dict(sampling["logit_bias"])
        except (TypeError, ValueError):
            raise MalformedMessage("sampling.logit_bias: not an array of pairs") from None
        fields = {**fields, "sampling": {**sampling, "logit_bias": biases}}
    return _model(JobRequest, fields)


def encode_chunk(chunk: Chunk) -> bytes:
    return _encode_message("c", chunk)


def encode_terminal(terminal: Terminal) -> bytes:
    return _encode_message("e", terminal)


def decode_entry(data: bytes) -> Chunk | Terminal:
    """One entry of a token stream, of either kind. Raises MalformedMessage."""
    kind, fields = _open(data)
    if (entry := _ENTRIES.get(kind)) is None:
        raise MalformedMessage(f"expected a stream entry, got a message of kind {kind!r}")
    return _checked(fields, entry)


def encode_result(terminal: Terminal, chunks: Iterable[Chunk]) -> bytes:
    """The compact result: the end and all chunks in stream order, runs of one sequence merged."""
    return _encode("r", _known_before(terminal), [_known_before(chunk) for chunk in merge(chunks)])


def decode_result(data: bytes) -> tuple[Terminal, tuple[Chunk, ...]]:
    """Raises MalformedMessage."""
    return _checked(_decode("r", data), tuple[Terminal, tuple[Chunk, ...]])


def encode_error(error: JobError) -> bytes:
    return _encode_message("x", error)


def decode_error(data: bytes) -> JobError:
    """Raises MalformedMessage."""
    return _checked(_decode("x", data), JobError)


def encode_usage(usage: Usage) -> bytes:
    return _encode_message("use", usage)


def decode_usage(data: bytes) -> Usage:
    """Raises MalformedMessage."""
    return _checked(_decode("use", data), Usage)


def encode_progress(progress: Progress) -> bytes:
    return _encode_message("p", progress)


def decode_progress(data: bytes) -> Progress:
    """Raises MalformedMessage."""
    return _checked(_decode("p", data), Progress)


def encode_metadata(metadata: dict[str, str]) -> bytes:
    return _encode("meta", metadata)


def decode_metadata(data: bytes) -> dict[str, str]:
    """Raises MalformedMessage."""
    return _checked(_decode("meta", data), tuple[dict[str, str]])[0]


def encode_model(card: ModelCard) -> bytes:
    """Without what earlier versions do not know: they refuse such a card."""
    return _encode("model", card.model_dump(exclude_defaults=True, exclude={"sampling", "aliases", "switches"}))


def decode_model(data: bytes) -> ModelCard:
    """Raises MalformedMessage."""
    return _model(ModelCard, _map(_decode("model", data)))


def encode_traits(card: ModelCard) -> bytes:
    """Traits of a model that its frame lacks. Readers leave out what they do not know."""
    return _encode("traits", {"sampling": card.sampling.given(), "switches": card.switches})


def decode_traits(data: bytes) -> Traits:
    """Raises MalformedMessage."""
    return _model(Traits, _map(_decode("traits", data)))


def encode_worker(info: WorkerInfo) -> bytes:
    return _encode("worker", info.model_dump())


def decode_worker(data: bytes) -> WorkerInfo:
    """Raises MalformedMessage."""
    return _model(WorkerInfo, _map(_decode("worker", data)))


def encode_pin(pin: PrefixPin) -> bytes:
    return _encode("pin", pin.model_dump(exclude_none=True))


def decode_pin(data: bytes) -> PrefixPin:
    """Raises MalformedMessage."""
    return _model(PrefixPin, _map(_decode("pin", data)))


def encode_memory(memory: WorkerMemory) -> bytes:
    return _encode("memory", memory.model_dump(exclude_defaults=True))  # earlier readers know no states


def decode_memory(data: bytes) -> WorkerMemory:
    """Raises MalformedMessage."""
    return _model(WorkerMemory, _map(_decode("memory", data)))


def encode_map(found: WorkerMap) -> bytes:
    return _encode_message("map", found)


def decode_map(data: bytes) -> WorkerMap:
    """Raises MalformedMessage."""
    found = _checked(_decode("map", data), WorkerMap)
    lengths = found.lengths
    if len(found.codes) * 2 != len(lengths) or len(lengths) % 4:
        raise MalformedMessage("a map has one length for each code")
    if sum(memoryview(lengths).cast("I")) != found.size:
        raise MalformedMessage("the runs of a map are not all of its blocks")
    return found


def encode_question(question: TokenizerQuestion) -> bytes:
    return _encode_message("ask", question)


def decode_question(data: bytes) -> TokenizerQuestion:
    """Raises MalformedMessage."""
    return _checked(_decode("ask", data), TokenizerQuestion)


def encode_answer(answer: TokenizerAnswer) -> bytes:
    return _encode_message("tok", answer)


def decode_answer(data: bytes) -> TokenizerAnswer:
    """Raises MalformedMessage."""
    return _checked(_decode("tok", data), TokenizerAnswer)


def readable(decode: Callable[[bytes], T], frames: Iterable[bytes]) -> list[T]:
    """Frames of many that can be read: a stranger's bytes are left out, and spoil no other."""
    messages = []
    for frame in frames:
        with suppress(MalformedMessage):
            messages.append(decode(frame))
    return messages


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
            and chunk.format in (None, runs[-1][0].format)
            and (last.logprobs is None) == (chunk.logprobs is None)
        )
        if fits:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return [run[0] if len(run) == 1 else _joined(run) for run in runs]


def _known_before(message: QueueMessage) -> tuple[Any, ...]:
    """Its fields without those at the end that it has not, which readers of earlier versions would refuse: the format
    of a chunk, drafts in a usage."""
    fields = msgspec.structs.astuple(message)
    if isinstance(message, Chunk):
        return fields if message.format is not None else fields[:-1]
    if isinstance(message, Usage):
        return fields if message.drafted_tokens else fields[:-2]
    return tuple(_known_before(field) if isinstance(field, Usage) else field for field in fields)


def _joined(run: Sequence[Chunk]) -> Chunk:
    logprobs = None if run[0].logprobs is None else tuple(item for chunk in run for item in chunk.logprobs or ())
    return Chunk(
        index=run[0].index,
        token_ids=tuple(token for chunk in run for token in chunk.token_ids),
        texts=tuple(text for chunk in run for text in chunk.texts),
        logprobs=logprobs,
        finish_reason=run[-1].finish_reason,
        format=run[0].format,
    )


def _encode_message(kind: str, message: QueueMessage) -> bytes:
    fields = _known_before(message)
    end = len(fields)
    while end and fields[end - 1] is None:
        end -= 1
    return _encode(kind, *fields[:end])


def _encode(kind: str, *fields: Any) -> bytes:
    return _ENCODER.encode((VERSION, kind, *fields))


def _decode(kind: str, data: bytes, most_containers: int | None = None) -> list[Any]:
    found, fields = _open(data, most_containers)
    if found != kind:
        raise MalformedMessage(f"expected a message of kind {kind!r}, got {found!r}")
    return fields


def _open(data: bytes, most_containers: int | None = None) -> tuple[str, list[Any]]:
    if not isinstance(data, bytes):
        raise MalformedMessage(f"expected bytes, got {type(data).__name__}")
    if len(data) > MAX_BYTES:
        raise MalformedMessage(f"message of {len(data)} bytes exceeds the limit of {MAX_BYTES}")
    try:
        message = msgpack.unpackb(data, **_READ_LIMITS, **_counted(most_containers))
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedMessage(f"not a message of this protocol: {error}") from error
    if not isinstance(message, list) or len(message) < 2 or not isinstance(message[1], str):
        raise MalformedMessage("not a message of this protocol: no envelope")
    if type(message[0]) is not int:
        raise MalformedMessage("not a message of this protocol: its version is no number")
    if message[0] != VERSION:
        raise MalformedMessage(f"message version {str(message[0])[:20]} is not {VERSION}: upgrade the older side")
    return message[1], message[2:]


def _counted(most: int | None) -> dict[str, Any]:
    """Options that end the reading of a message with more maps and arrays, before there is an object for each."""
    if most is None:
        return {}
    left = iter(range(most))

    def count(container: Any) -> Any:
        if next(left, None) is None:
            raise ValueError(f"more than {most} maps and arrays")
        return container

    return {"list_hook": count, "object_hook": count}


def _checked(fields: list[Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind)
    except ValueError as error:
        raise MalformedMessage(str(error)) from None


def _map(fields: list[Any]) -> dict[str, Any]:
    if len(fields) != 1 or not isinstance(fields[0], dict):
        raise MalformedMessage("expected one map")
    _check_shape(fields[0])
    return fields[0]


def _check_shape(message: dict[str, Any]) -> None:
    """Refuses deep nesting and extension types (timestamps pass msgpack's own limit), without recursion."""
    level: list[Any] = [message]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            items = container.values() if isinstance(container, dict) else container
            if _PLAIN.issuperset(map(type, items)):
                continue
            for item in items:
                if isinstance(item, (list, dict)):
                    below.append(item)
                elif isinstance(item, (msgpack.Timestamp, msgpack.ExtType)):
                    raise MalformedMessage("extension types are not part of this protocol")
        if not below:
            return
        level = below
    raise MalformedMessage(f"message is nested deeper than {MAX_DEPTH}")


def _model(model: type[M], fields: dict[str, Any]) -> M:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise MalformedMessage(in_words(problem, where or "message")) from None  # the cause would quote the prompt
    except (TypeError, ValueError) as error:
        raise MalformedMessage("a field has the wrong shape") from error
