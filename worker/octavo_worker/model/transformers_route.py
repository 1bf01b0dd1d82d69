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
from octavo_kernels.ops import LayerStates
from octavo_worker.contract.cache import AttentionShape
from octavo_worker.contract.state import StateSpec
from octavo_worker.model.batch import Batch
from octavo_worker.model.checkpoint.source import Checkpoint
from octavo_worker.model.config import LatentLayer
from octavo_worker.model.errors import CheckpointError
from octavo_worker.model.library import drawn_model, filled_model, fitted
from octavo_worker.model.numerics import TRANSFORMERS
from octavo_worker.model.substitutes import RowByRow, substitute
from octavo_worker.model.trial import Trial, in_words
from octavo_worker.ranks.group import Group

NAME = "octavo_paged"
LAYER = "octavo"  # the attribute of an attention module that tells the attention function its layer


@dataclass(slots=True)
class Step:
    """State that all layers share: the cache, and the batch being computed."""

    caches: list[Tensor] = field(default_factory=list)
    block_size: int = 0
    batch: Batch | None = None


@dataclass(slots=True)
class Layer:
    """A layer's number and state, which its attention module carries as the attribute `LAYER`."""

    index: int
    step: Step


class TransformersModel:
    """A transformers causal model behind the same methods as `Decoder`.

    `forward` already returns logits, in the model's dtype; `logits` passes them on.
    """

    is_capturable = None
    route = f"transformers-{transformers.__version__}-{TRANSFORMERS}"
    forms: frozenset[str] = frozenset()
    uniform = False
    factors = ""
    has_whole_experts = False
    has_chunks = False
    expanded: LatentLayer | None = None
    states: tuple[StateSpec | None, ...] = ()
    reads_windows = False
    kept_bytes = 0
    group: Group | None = None

    def __init__(self, model: PreTrainedModel, trial: Trial) -> None:
        """`trial` is that of the model's config."""
        self.model = model.eval()
        substitute(model)
        self.step = Step()
        self.dtype = model.dtype
        self.device = model.device
        self.vocab_size = model.config.get_text_config().vocab_size
        self.cache = trial.cache
        self._selects_rows = trial.selects_rows
        for module in model.modules():
            if isinstance(index := getattr(module, "layer_idx", None), int):
                setattr(module, LAYER, Layer(index, self.step))

    def bind(self, caches: Sequence[Tensor | None], block_size: int, max_model_len: int) -> None:
        self.step.caches = [cache for cache in caches if cache is not None]  # every layer keeps something
        self.step.block_size = block_size

    def bind_states(self, states: Sequence[LayerStates | None]) -> None:
        """It keeps none."""

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


def load_transformers(
    folder: Path,
    config: PreTrainedConfig,
    trial: Trial,
    dtype: torch.dtype,
    device: torch.device,
    dummy_seed: int | None,
) -> TransformersModel:
    """Loads `folder` (or, with a `dummy_seed`, random weights). Raises `UnsupportedModel` or `CheckpointError`."""
    AttentionInterface.register(NAME, paged_attention)
    ways: dict[str, Any] = {"dtype": dtype, "attn_implementation": NAME}
    if device.type == "cpu":  # others multiply the rows of all experts at once, and round by their number
        ways["experts_implementation"] = "eager"
    with in_words(config):
        if dummy_seed is not None:
            torch.manual_seed(dummy_seed)
            with device:  # a mixture's experts take minutes on a CPU
                model = drawn_model(config, **ways)
        else:
            model, report = filled_model(config, Checkpoint.open(folder).tensors(), **ways)
            _check_report(report)
    return TransformersModel(model.to(device), trial)  # type: ignore[arg-type]  # transformers' decorator hides the signature


def check_files(folder: Path, config: PreTrainedConfig, dtype: torch.dtype) -> None:
    """Raises `UnsupportedModel` or `CheckpointError` for a folder whose tensors have other names or shapes than the
    model. Reads headers only."""
    AttentionInterface.register(NAME, paged_attention)
    places = Checkpoint.open(folder).places
    with in_words(config):
        _check_report(fitted(config, places, dtype=dtype, attn_implementation=NAME, experts_implementation="eager"))


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
        plan=batch.plans.get(AttentionShape(sliding_window or 0, q.shape[1], k.shape[1], q.shape[2])),
    )
    return out[None, ..., :width], None


def _check_report(report: Any) -> None:
    missing = sorted(report["missing_keys"])
    mismatched = sorted(str(entry[0]) for entry in report["mismatched_keys"])
    if missing or mismatched:
        raise CheckpointError(
            f"the checkpoint does not fit its config.json: missing {missing[:5]}, wrong shape {mismatched[:5]}."
        )
