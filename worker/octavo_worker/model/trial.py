"""A trial of a model that runs on its transformers code: whether our paged attention could take the place of its own.

The trial needs no weights, so that it is over before any is read, and gives `octavo doctor` and a worker one answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from octavo_worker.contract.cache import CacheSpec
from octavo_worker.model.errors import NEXT, ModelError, UnsupportedModel
from octavo_worker.model.outline import Outlining, outlined
from octavo_worker.model.transfer import dtype_name

NAME = "octavo_trial"
LAYER = "octavo_trial"  # the attribute of an attention module that tells the attention function its layer
OURS = ("position_ids", "logits_to_keep")  # arguments that some models pass on to the attention function


@dataclass(frozen=True, slots=True)
class Trial:
    """Findings on a model that can be served: what each layer keeps, and whether it computes logits of the rows alone
    that it is asked for."""

    cache: tuple[CacheSpec | None, ...]
    selects_rows: bool


@dataclass(slots=True)
class Call:
    """One call of the attention function."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    problem: str | None
    is_even: bool  # whether the queries of all tokens are about equal


@dataclass(slots=True)
class Record:
    """Calls of all layers."""

    calls: list[Call] = field(default_factory=list)

    def take(self) -> list[Call]:
        calls, self.calls = self.calls, []
        return calls


@dataclass(slots=True)
class Layer:
    """A layer's number and kind, which its attention module carries as the attribute `LAYER`."""

    index: int
    record: Record
    sliding: bool


def tried(config: PreTrainedConfig, dtype: torch.dtype) -> Trial:
    """One token through the model: every layer must call the attention function exactly once, with nothing that it
    would have to ignore. Raises `UnsupportedModel`."""
    AttentionInterface.register(NAME, recorded_attention)
    outlining, record, text = Outlining(), Record(), config.get_text_config()
    with in_words(config):
        ways = {"dtype": dtype, "attn_implementation": NAME, "experts_implementation": "eager"}
        model = outlined(config, outlining, **ways)
    name = type(model).__name__
    layers = getattr(text, "num_hidden_layers", None)
    if not isinstance(layers, int):
        raise UnsupportedModel(f"{name} has a config that does not say how many layers it has; {NEXT}")
    _attach(model, text, record)
    with outlining:
        calls, _ = _try(model, record, 1)
        if problems := sorted({call.problem for call in calls if call.problem}):
            raise UnsupportedModel(f"{name}: {'; '.join(problems)}; {NEXT}")
        if sorted(call.layer for call in calls) != list(range(layers)):
            raise UnsupportedModel(
                f"{name} called transformers' attention interface for {len(calls)} of {layers} layers; only models "
                f"whose every layer is attention through that interface can be served; {NEXT}"
            )
        twice, logits = _try(model, record, 2)
    if not all(call.is_even for call in twice):
        raise UnsupportedModel(
            f"{name} counts positions by itself, from the first token of a batch: neighbours would change answers; "
            f"{NEXT}"
        )
    calls.sort(key=lambda call: call.layer)
    kept = dtype_name(model.dtype)
    return Trial(
        cache=tuple(CacheSpec(c.kv_heads, c.head_dim, c.head_dim, kept, c.window, c.heads) for c in calls),
        selects_rows=logits.shape[1] == 1,  # some models' code makes those of all tokens whatever it is asked
    )


def recorded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: `query[1, heads, T, D]`, `key` and `value[1, kv_heads, T, D]`, rotated. Every
    token attends to itself."""
    layer: Layer = getattr(module, LAYER)
    _, kv_heads, _, head_dim = key.shape
    problem = _problem(layer, module, attention_mask, sliding_window, value.shape[-1] - head_dim, others)
    even = _are_even(query, 2)
    call = Call(layer.index, query.shape[1], kv_heads, head_dim, sliding_window or 0, problem, even)
    layer.record.calls.append(call)
    return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2).contiguous(), None


def _try(model: PreTrainedModel, record: Record, count: int) -> tuple[list[Call], Tensor]:
    """The calls for so many equal tokens at one position, and the logits of the last, or of all."""
    ids = torch.zeros((1, count), dtype=torch.int64)
    try:
        with torch.inference_mode():
            output = model(
                input_ids=ids,
                position_ids=torch.full_like(ids, 1),
                use_cache=False,
                logits_to_keep=ids[0, :1] + count - 1,
            )
        return record.take(), output.logits
    except Exception as error:  # its code may do anything with masks that are not there and heads of other shapes
        raise UnsupportedModel(
            f"{type(model).__name__} cannot run with attention from elsewhere "
            f"({type(error).__name__}: {_first_line(error)}); {NEXT}"
        ) from error


def _problem(
    layer: Layer, module: nn.Module, mask: Tensor | None, window: int | None, surplus: int, others: dict[str, Any]
) -> str | None:
    """Why paged attention would differ from this model's own, or None."""
    if mask is not None:
        return "it adds a mask or bias of its own to the attention scores (ALiBi, prefix masks)"
    if not getattr(module, "is_causal", True):
        return "it attends in both directions"
    if layer.sliding and not window:
        return "its sliding window is not passed to the attention function"
    if surplus > 0:
        return "its value heads are wider than its key heads"
    if tensors := sorted(name for name, value in others.items() if isinstance(value, Tensor) and name not in OURS):
        return f"it passes {', '.join(tensors)} to the attention function, which paged attention does not know"
    return None


def _attach(model: PreTrainedModel, text: PreTrainedConfig, record: Record) -> None:
    kinds = getattr(text, "layer_types", None) or []
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int):  # parts for pictures have numbers of their own, some below zero
            sliding = 0 <= index < len(kinds) and kinds[index] == "sliding_attention"
            setattr(module, LAYER, Layer(index, record, sliding))


def _are_even(x: Tensor, tokens: int) -> bool:
    """True if the parts of all tokens, which lie along a dimension, are about equal."""
    x = x.float()
    spread = x - x.narrow(tokens, 0, 1)
    return bool(spread.abs().max() <= 0.02 * x.abs().max())


@contextmanager
def in_words(config: PreTrainedConfig) -> Iterator[None]:
    """Raises `UnsupportedModel` for whatever transformers raises while it makes or fills a model."""
    try:
        yield
    except KeyError as error:
        if "octavo" not in str(error):  # the lookup of our attention's name
            raise _unloaded(config, error) from error
        raise UnsupportedModel(
            f"{config.model_type!r} takes no attention from elsewhere, so it cannot read a paged cache; {NEXT}"
        ) from error
    except (torch.OutOfMemoryError, ModelError):
        raise
    except Exception as error:  # its code may do anything with a config that it does not expect
        raise _unloaded(config, error) from error


def _unloaded(config: PreTrainedConfig, error: Exception) -> UnsupportedModel:
    return UnsupportedModel(
        f"transformers cannot load {config.model_type!r} ({type(error).__name__}: {_first_line(error)}); {NEXT}"
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".")
