"""Another format of weights brings along one kind of Linear, and how each part of a matrix is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import ragged_batch
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.model.checkpoint.build import build_layers
from octavo_worker.model.checkpoint.formats import DenseFormat, Format, Matrix, Reader
from octavo_worker.model.checkpoint.source import Checkpoint
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.families import decoder_config
from octavo_worker.model.layers.linear import Dense, Linear, Products
from octavo_worker.model.layers.norm import Input
from octavo_worker.runner.base import BaseRunner

CONFIG = LlamaConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


@dataclass(frozen=True)
class Scaled(Linear):
    """Eight bits a weight and a scale a row."""

    codes: Tensor
    scales: Tensor

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        return Dense(self.codes * self.scales).apply(x, out, residual)


class ScaledFormat:
    """Matrices with a `.scale` are scaled, the others dense."""

    def linear(self, matrix: Matrix, reader: Reader) -> Linear:
        if "scale" not in reader.source.under(matrix.names[0]):
            return DenseFormat().linear(matrix, reader)
        columns, rows = sum(matrix.rows), list(matrix.rows)
        linear = Scaled(torch.empty(columns, matrix.depth, dtype=torch.int8), reader.empty(columns, 1))
        for name, codes, scales in zip(matrix.names, linear.codes.split(rows), linear.scales.split(rows), strict=True):
            reader.source.read(f"{name}.weight", codes)
            reader.source.read(f"{name}.scale", scales)
        return linear


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / scales).round().to(torch.int8), scales


def logits(folder: Path, form: Format) -> tuple[Decoder, Tensor]:
    described, cpu = decoder_config(CONFIG), torch.device("cpu")
    assert described is not None
    reader = Reader(Checkpoint.open(folder), torch.float32, cpu, Products())
    decoder = Decoder(described, build_layers(described, reader, form), 16, uniform=False)
    BaseRunner(decoder, CacheConfig(4, 16), 64, 16)
    batch = ragged_batch([SequenceStep([3, 1, 4, 1, 5], 0, [1]), SequenceStep([9, 2, 6], 0, [2])], 16, 50)
    with torch.inference_mode():
        return decoder, decoder.logits(decoder.forward(batch, None))


def test_a_format_chooses_a_kind_of_linear_for_each_matrix_and_reads_it_part_by_part(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(CONFIG, trust_remote_code=False).float().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    scaled, rounded = {}, {}
    for name, tensor in load_file(file).items():
        scaled[name] = rounded[name] = tensor
        if "_proj" in name and "down_proj" not in name:
            codes, scales = quantised(tensor)
            scaled |= {name: codes, name.replace(".weight", ".scale"): scales}
            rounded[name] = codes * scales
    save_file(scaled, file)
    decoder, got = logits(tmp_path, ScaledFormat())
    (block, _) = decoder.layers.blocks
    assert isinstance(block.attention.qkv, Scaled)
    assert isinstance(block.mlp.down, Dense)
    save_file(rounded, file)
    assert torch.equal(got, logits(tmp_path, DenseFormat())[1])
