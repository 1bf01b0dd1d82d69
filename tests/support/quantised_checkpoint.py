"""Checkpoints of tests: written from tensors and a config, read into canonical weights or served whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from octavo_kernels.products.weights import Codes, QuantisedWeight, dequantise
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import ragged_batch
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.model.checkpoint.formats import Reader, format_of
from octavo_worker.model.checkpoint.formats.stored import Part, QuantisedFormat, Taken, canonical, check_headers
from octavo_worker.model.checkpoint.source import Checkpoint
from octavo_worker.model.layers.linear import Products
from octavo_worker.runner.base import BaseRunner


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def read_weight(folder: Path, name: str, rows: int, depth: int) -> QuantisedWeight:
    """A matrix of the checkpoint in its canonical form."""
    form, source = format_of(folder), Checkpoint.open(folder)
    assert isinstance(form, QuantisedFormat)
    part = Part(name, rows, depth, source.under(name))
    stored = form.method.stored(part)
    assert stored is not None
    taken = Taken(part, stored, check_headers(part, stored))
    (weight,) = canonical([taken], Reader(source, torch.float32, torch.device("cpu"), Products()))
    return weight


def unpacked(codes: Tensor) -> Tensor:
    """Two of four bits a byte, the lower first."""
    return torch.stack((codes % 16, codes // 16), dim=-1).flatten(1)


def assert_is(weight: QuantisedWeight, q: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> None:
    """`q[rows, depth]`, `zeros` and `scales[rows, groups]` as the format counts them: integers 0 to 15 or to 255."""
    middle = 0 if weight.scheme.codes is Codes.INT4 else 128
    order = torch.argsort(groups, stable=True)
    codes = unpacked(weight.codes) if middle == 0 else weight.codes.long() + middle
    assert torch.equal(codes.long(), q.long()[:, order])
    assert torch.equal(weight.scales, scales.float().T)
    if weight.zeros is None:
        assert (zeros == (middle or 8)).all()
    else:
        assert torch.equal(weight.zeros.long() + middle, zeros.long().T)
    if weight.order is None:
        assert torch.equal(order, torch.arange(len(groups)))
    else:
        assert torch.equal(weight.order.long(), order)
    assert torch.equal(dequantise(weight), (q - zeros[:, groups]).float() * scales.float()[:, groups])


def logits(folder: Path, ids: Sequence[int], dtype: str = "float32") -> Tensor:
    """Logits of every position of one prompt, float32, from the model in `folder`."""
    model, _ = load_model(ModelOptions(model=str(folder), dtype=dtype, device="cpu", max_model_len=64))
    BaseRunner(model, CacheConfig(9, 16), 64, 64)
    batch = ragged_batch([SequenceStep(list(ids), 0, [1, 2, 3, 4])], 16, model.vocab_size)
    with torch.inference_mode():
        return model.logits(model.forward(batch, None)).float()
