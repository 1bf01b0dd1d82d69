"""Any other causal model: transformers' modelling code with our paged attention registered as its attention function.

transformers calls `paged_attention` once a layer with rotated heads. Keys and values go into the paged cache and
attention reads only that, so neither masks nor transformers' own caches take part. Linear layers and norms are ours.
On a GPU decode steps become CUDA graphs if the model's code never waits for the device. Code that depends on values of
tensors would have to wait, so a step that can be captured does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from octavo_kernels import ops
from octavo_worker.contract.cache import CacheSpec
from octavo_worker.model.batch import Batch
from octavo_worker.model.checkpoint.source import Checkpoint
from octavo_worker.model.errors import NEXT, CheckpointError, UnsupportedModel
from octavo_worker.model.library import drawn_model, filled_model
from octavo_worker.model.numerics import TRANSFORMERS
from octavo_worker.model.substitutes import RowByRow, substitute
from octavo_worker.model.transfer import dtype_name
from octavo_worker.ranks.group import Group

NAME = "octavo_paged"
LAYER = "octavo"  # the attribute of an attention module that tells the attention function its layer
OURS = ("position_ids", "logits_to_keep")  # arguments that some models pass on to the attention function


@dataclass(slots=True)
class Call:
    """One call of the attention function during the trial run."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    problem: str | None
    is_even: bool  # whether the queries of all tokens are about equal


@dataclass(slots=True)
class Step:
    """State that all layers share: the cache, the batch being computed, and the record of the trial run."""

    caches: list[Tensor] = field(default_factory=list)
    block_size: int = 0
    batch: Batch | None = None
    calls: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class Layer:
    """A layer's number and state, which its attention module carries as the attribute `LAYER`."""

    index: int
    step: Step
    sliding: bool


class TransformersModel:
    """A transformers causal model behind the same methods as `Decoder`.

    `forward` already returns logits, in the model's dtype; `logits` passes them on.
    """

    is_capturable = None
    route = f"transformers-{transformers.__version__}-{TRANSFORMERS}"
    forms: frozenset[str] = frozenset()
    uniform = False
    factors = ""
    kept_bytes = 0
    group: Group | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self.model = model.eval()
        substitute(model)
        self.step = Step()
        self.dtype = model.dtype
        self.device = model.device
        self.vocab_size = config.vocab_size
        self._num_layers = config.num_hidden_layers
        _attach(model, config, self.step)
        calls = self._trial_run()
        heads = {call.heads for call in calls}
        self.num_heads = heads.pop() if len(heads) == 1 else 0
        by_layer = sorted(calls, key=lambda call: call.layer)
        kept = dtype_name(self.dtype)
        self.cache = tuple(CacheSpec(c.kv_heads, c.head_dim, c.head_dim, kept, c.window) for c in by_layer)

    def bind(self, caches: Sequence[Tensor], block_size: int, max_model_len: int) -> None:
        self.step.caches = list(caches)
        self.step.block_size = block_size

    def shortened(self) -> AbstractContextManager[None]:
        return nullcontext()

    def forward(self, batch: Batch, rows: Tensor | None) -> Tensor:
        self.step.batch = batch
        with RowByRow() if self.device.type == "cpu" else nullcontext():
            output = self.model(
                input_ids=batch.token_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=0 if rows is None else rows,
            )
        logits: Tensor = output.logits[0]
        return logits if rows is None or self._selects_rows else logits[rows]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def _trial_run(self) -> list[Call]:
        """One token through the model: every layer must call the attention function exactly once, with nothing that it
        would have to ignore. Returns the calls."""
        name = type(self.model).__name__
        calls, _ = self._try(1)
        if problems := sorted({call.problem for call in calls if call.problem}):
            raise UnsupportedModel(f"{name}: {'; '.join(problems)}; {NEXT}")
        if sorted(call.layer for call in calls) != list(range(self._num_layers)):
            raise UnsupportedModel(
                f"{name} called transformers' attention interface for {len(calls)} of {self._num_layers} layers; "
                f"only models whose every layer is attention through that interface can be served; {NEXT}"
            )
        twice, logits = self._try(2)
        self._selects_rows = logits.shape[1] == 1  # some models' code makes those of all tokens whatever it is asked
        if not all(call.is_even for call in twice):
            raise UnsupportedModel(
                f"{name} counts positions by itself, from the first token of a batch: neighbours would change answers; "
                f"{NEXT}"
            )
        return calls

    def _try(self, count: int) -> tuple[list[Call], Tensor]:
        """The calls for so many equal tokens at one position, and the logits of the last, or of all."""
        ids = torch.zeros((1, count), dtype=torch.int64, device=self.device)
        try:
            with torch.inference_mode():
                output = self.model(
                    input_ids=ids,
                    position_ids=torch.full_like(ids, 1),
                    use_cache=False,
                    logits_to_keep=ids[0, :1] + count - 1,
                )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # its code may do anything with masks that are not there and heads of other shapes
            raise UnsupportedModel(
                f"{type(self.model).__name__} cannot run with attention from elsewhere "
                f"({type(error).__name__}: {_first_line(error)}); {NEXT}"
            ) from error
        calls, self.step.calls = self.step.calls, []
        return calls, output.logits


def load_transformers(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, dummy_seed: int | None
) -> TransformersModel:
    """Loads `folder` (or, with a `dummy_seed`, random weights). Raises `UnsupportedModel` or `CheckpointError`."""
    AttentionInterface.register(NAME, paged_attention)
    ways: dict[str, Any] = {"dtype": dtype, "attn_implementation": NAME}
    if device.type == "cpu":  # others multiply the rows of all experts at once, and round by their number
        ways["experts_implementation"] = "eager"
    try:
        if dummy_seed is not None:
            torch.manual_seed(dummy_seed)
            with device:  # a mixture's experts take minutes on a CPU
                model = drawn_model(config, **ways)
        else:
            model, report = filled_model(config, Checkpoint.open(folder).tensors(), **ways)
            _check_report(report)
    except KeyError as error:  # the lookup of our attention's name
        raise UnsupportedModel(
            f"{config.model_type!r} takes no attention from elsewhere, so it cannot read a paged cache; {NEXT}"
        ) from error
    except (torch.OutOfMemoryError, CheckpointError):
        raise
    except Exception as error:  # its code may do anything with a config that it does not expect
        raise UnsupportedModel(
            f"transformers cannot load {config.model_type!r} ({type(error).__name__}: {_first_line(error)}); {NEXT}"
        ) from error
    return TransformersModel(model.to(device))  # type: ignore[arg-type]  # transformers' decorator hides the signature


def paged_attention(
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
    """transformers' attention signature: `query[1, heads, T, D]`, `key` and `value[1, kv_heads, T, D]`, rotated.

    Returns `[1, T, heads, D]`. Values narrower than the keys (MLA) are padded with zeros in the cache.
    """
    layer: Layer = getattr(module, LAYER)
    step, width = layer.step, value.shape[-1]
    if not step.caches:
        _, kv_heads, _, head_dim = key.shape
        problem = _problem(layer, module, attention_mask, sliding_window, width - head_dim, others)
        even = _are_even(query, 2)
        step.calls.append(Call(layer.index, query.shape[1], kv_heads, head_dim, sliding_window or 0, problem, even))
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2).contiguous(), None
    assert step.batch is not None
    batch, cache = step.batch, step.caches[layer.index]
    value = nn.functional.pad(value, (0, key.shape[-1] - width)) if width < key.shape[-1] else value
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    ops.write_kv(k, v, cache, batch.slots, step.block_size)
    tables = batch.block_tables
    if batch.stage is not None:
        cache, tables = batch.stage.gather(cache), batch.stage.tables
    out = torch.empty_like(q)
    ops.paged_attention(
        q,
        cache,
        tables,
        batch.context_lens,
        batch.query_start,
        out,
        q.shape[-1] ** -0.5 if scaling is None else float(scaling),
        block_size=step.block_size,
        sliding_window=sliding_window or 0,
        softcap=softcap or 0.0,
        sinks=None if s_aux is None else s_aux.float(),
        plan=batch.plans.get(sliding_window or 0),
    )
    return out[None, ..., :width], None


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


def _attach(model: PreTrainedModel, config: PreTrainedConfig, step: Step) -> None:
    kinds = getattr(config, "layer_types", None) or []
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int):
            sliding = index < len(kinds) and kinds[index] == "sliding_attention"
            setattr(module, LAYER, Layer(index, step, sliding))


def _are_even(x: Tensor, tokens: int) -> bool:
    """True if the parts of all tokens, which lie along a dimension, are about equal."""
    x = x.float()
    spread = x - x.narrow(tokens, 0, 1)
    return bool(spread.abs().max() <= 0.02 * x.abs().max())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".")


def _check_report(report: Any) -> None:
    missing = sorted(report["missing_keys"])
    mismatched = sorted(str(entry[0]) for entry in report["mismatched_keys"])
    if missing or mismatched:
        raise CheckpointError(
            f"the checkpoint does not fit its config.json: missing {missing[:5]}, wrong shape {mismatched[:5]}."
        )
