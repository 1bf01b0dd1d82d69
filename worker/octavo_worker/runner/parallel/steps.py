"""Steps as messages to the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from octavo_worker.contract.step import Masks, SampleSpec, SequenceStep, StepPlan


class MaskWords(msgspec.Struct, array_like=True, tag=True):
    """`Masks`, with rows of so many words."""

    places: list[int]
    width: int
    words: bytes


class Step(msgspec.Struct, array_like=True, tag=True):
    """A plan, with no more of what its sequences have than the step needs."""

    plan: StepPlan


def _plain(value: Any) -> Any:
    if isinstance(value, Sequence):  # such as an array of a prompt's tokens
        return list(value)
    raise TypeError(f"a {type(value).__name__} cannot be part of a step's message")


ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER: msgspec.msgpack.Decoder[Step | MaskWords] = msgspec.msgpack.Decoder(Step | MaskWords)


def encode_plan(plan: StepPlan, block_size: int) -> bytes:
    steps = [_needed(step, block_size) for step in plan.sequences]
    return ENCODER.encode(Step(msgspec.structs.replace(plan, sequences=steps)))


def encode_masks(masks: Masks) -> bytes:
    return ENCODER.encode(MaskWords(list(masks.places), masks.words.shape[1], masks.words.tobytes()))


def decode(message: bytes) -> StepPlan | Masks:
    match _DECODER.decode(message):
        case Step(plan):
            return plan
        case MaskWords(places, width, words):
            rows = np.frombuffer(words, np.int32).reshape(len(places), width)
            return Masks(places, rows.copy())  # torch takes no memory that cannot be written


def _needed(step: SequenceStep, block_size: int) -> SequenceStep:
    """Tables and outputs go on growing while the scheduler has them; texts are looked at for penalties alone."""
    samples = [spec if spec.penalises else _without_text(spec) for spec in step.samples]
    count = -(-step.end // block_size)
    tables = {"block_table": step.block_table[:count], "window_table": step.window_table[:count]}
    return msgspec.structs.replace(step, samples=samples, **tables)


def _without_text(spec: SampleSpec) -> SampleSpec:
    return msgspec.structs.replace(spec, prompt=(), output=())
