"""Layers whose attention differs: in heads, their width, and what they keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import transformers
from transformers import LlamaConfig

from octavo_kernels.features import Feature
from octavo_worker.assembly import choices
from octavo_worker.assembly.choices import choose, has_decoder, kept_of
from octavo_worker.assembly.devices import check_heads
from octavo_worker.assembly.inspection import inspect
from octavo_worker.bench.floors import Costs
from octavo_worker.contract.cache import CacheSpec, KvLayout, shapes_of
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import Batch, ragged_batch
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.model.checkpoint.build import build_layers
from octavo_worker.model.checkpoint.formats import DenseFormat, Reader
from octavo_worker.model.checkpoint.source import RandomWeights
from octavo_worker.model.config import AttentionLayer, DecoderConfig, LayerInputs
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.families import decoder_config
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Dense, Linear, Products
from octavo_worker.model.layers.norm import AddNorm, Input
from octavo_worker.model.layers.tables import Tables
from octavo_worker.model.shards import Shards, check_divisible
from octavo_worker.ranks.rank import Rank
from octavo_worker.runner.paged import PagedRunner

HIDDEN, INNER, VOCAB = 64, 80, 90
WIDE = {"heads": 8, "kv_heads": 2, "head_dim": 32, "values_are_keys": True}
OWN: list[dict[str, object]] = [{}, WIDE, {"shares": 0}, WIDE | {"values_are_keys": False, "shares": 1}]


SOME = [{}, WIDE | {"values_are_keys": False}, {}, {}]
CPU = torch.device("cpu")


def described(own: list[dict[str, object]] = OWN) -> DecoderConfig:
    """Layers with 4 query heads, 2 of keys and values, of 16 values each, unless they say otherwise."""
    plain = decoder_config(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=len(own),
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None,
        )
    )  # fmt: skip
    assert plain is not None
    layers = zip(plain.layers, own, strict=True)
    attentions = [replace(layer, attention=replace(layer.attention, **each)) for layer, each in layers]  # type: ignore[arg-type]
    return replace(plain, layers=tuple(attentions))


def test_a_layer_sees_its_own_heads() -> None:
    sizes = [(c.q_size, c.kv_size, c.num_heads, c.num_kv_heads, c.head_dim) for c in described().attentions]
    narrow, wide = (64, 32, 4, 2, 16), (256, 64, 8, 2, 32)
    assert sizes == [narrow, wide, narrow, wide]
    assert not described().has_even_heads
    assert described([{}, {"shares": 0}]).has_even_heads


def test_what_a_checkpoint_s_layers_keep_is_known_before_its_weights() -> None:
    kept = kept_of(described(), None, torch.bfloat16)
    narrow, wide = CacheSpec(2, 16, 16, "bfloat16", heads=4), CacheSpec(2, 32, 32, "bfloat16", heads=8)
    assert kept == [narrow, wide, replace(narrow, shares=0), replace(wide, shares=1)]
    layout = KvLayout.of(kept, 16)
    assert layout.block_bytes == 16 * 2 * 2 * (2 * 16 + 2 * 32)


def test_scratch_memory_has_room_for_the_widest_layer() -> None:
    buffers = Buffers.allocate(described(), 3, torch.float32, torch.device("cpu"))
    assert [tuple(each.shape) for each in (buffers.qkv, buffers.q, buffers.room)] == [(3, 384), (3, 256), (3, 256)]


def test_ranks_share_the_heads_of_each_layer() -> None:
    for index in (0, 1):
        part = Shards(described(), Rank(index, 2)).config
        assert [(c.num_heads, c.num_kv_heads, c.head_dim) for c in part.attentions] == [(2, 1, 16), (4, 1, 32)] * 2
    shards = Shards(described(), Rank(1, 2))
    wide = shards.of(described().layers[1].attention)
    assert wide.qkv(1, 2).rows == [[range(128, 256)], [range(32, 64)]]
    assert shards.qkv(0, 1).rows == [[range(32, 64)]]
    assert shards.qkv(2, 1).rows == [[range(32, 64), range(80, 96), range(112, 128)]]


def test_ranks_that_do_not_divide_the_heads_of_some_layer_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"^6 attention heads and 3 heads of keys and values and "):
        check_divisible(described([{}, {"heads": 6, "kv_heads": 3}]), 4)


def test_heads_of_every_layer_are_checked() -> None:
    def check(attention: dict[str, object]) -> None:
        check_heads("llama", shapes_of(kept_of(described([{}, attention]), None, torch.bfloat16)), torch.device("cpu"))

    check(WIDE)
    with pytest.raises(UnsupportedModel, match="8 query heads cannot share 3 heads"):
        check({"heads": 8, "kv_heads": 3})
    with pytest.raises(UnsupportedModel, match="up to 512, not 520"):
        check({"head_dim": 520})


def test_the_widest_heads_have_no_room_on_an_amd_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = shapes_of(kept_of(described([{}, {"head_dim": 512}]), None, torch.bfloat16))
    check_heads("gemma4", shapes, torch.device("cuda"))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    check_heads("gemma4", shapes, torch.device("cpu"))
    with pytest.raises(
        UnsupportedModel, match=r"'gemma4': .*heads of 512 elements, 472 are the most; give --device cpu"
    ):
        check_heads("gemma4", shapes, torch.device("cuda"))


def test_costs_count_what_layers_have() -> None:
    costs = Costs.of(described(), weight_bytes=0, kv_itemsize=2)
    narrow, wide = 2 * 64 + 2 * 32, 2 * 256 + 64
    mlps = 4 * 3 * HIDDEN * INNER
    assert costs.layers == HIDDEN * (narrow + wide + 2 * 64 + 2 * 256) + mlps
    assert costs.kv_bytes == 2 * 2 * (32 + 64)
    assert costs.pair_flops == 4 * 2 * (64 + 256)
    more = Costs.of(replace(described(), layer_inputs=LayerInputs(VOCAB, 8)), weight_bytes=0, kv_itemsize=2)
    assert more.layers == costs.layers + 4 * 3 * HIDDEN * 8


def test_products_of_keys_and_values() -> None:
    layer = AttentionLayer(1.0)
    assert layer.projected == 2
    assert replace(layer, values_are_keys=True).projected == 1
    assert replace(layer, shares=0).projected == 0


@dataclass
class Passing:
    """A mixer that keeps nothing: each token's own input, of another width than attention's output."""

    out: Dense

    kind = "passing"

    def kept(self, dtype: torch.dtype) -> CacheSpec | None:
        return None

    def bind(self, cache: torch.Tensor | None, block_size: int, tables: Tables) -> None:
        assert cache is None

    def products(self) -> dict[str, Linear]:
        return {"out": self.out}

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        b.attended = x.materialise()[:, :24].clone()

    def into_norm(self, b: Buffers, add_norm: AddNorm) -> Input:
        return self.out.into_norm(Input(b.attended), b, add_norm)


def test_a_layer_may_keep_nothing() -> None:
    """Beside layers of two widths, first and last as well: a prompt gives the same in one step and in several."""
    config, reader = described(SOME), Reader(RandomWeights(1, 1.0, CPU, 0.2), torch.float32, CPU, Products())
    layers = build_layers(config, reader, DenseFormat())
    for number in (0, 3):
        layers.blocks[number] = replace(layers.blocks[number], attention=Passing(Dense(torch.randn(HIDDEN, 24))))
    model = Decoder(config, layers, 64, uniform=False)
    assert [spec is None for spec in model.cache] == [True, False, False, True]
    runner = PagedRunner(model, CacheConfig(9, 16), 64)
    assert runner.layout.block_bytes == 16 * 4 * 2 * (2 * 32 + 2 * 16)
    tokens = torch.randint(VOCAB, (40,)).tolist()

    def features(cuts: list[int]) -> torch.Tensor:
        found = []
        for start, end in zip([0, *cuts], [*cuts, 40], strict=True):
            step = SequenceStep(tokens[start:end], start, [1, 2, 3])
            found.append(model.forward(ragged_batch([step], 16, VOCAB), None).clone())
        return torch.cat(found)

    with torch.inference_mode():
        whole = features([])
        assert torch.equal(features([1, 17, 33]), whole)
        last = model.forward(ragged_batch([SequenceStep(tokens, 0, [4, 5, 6])], 16, VOCAB), torch.tensor([39, 3]))
    assert torch.equal(last, whole[[39, 3]])


gemma4 = pytest.mark.skipif(not hasattr(transformers, "Gemma4UnifiedTextConfig"), reason="not in this transformers")


@gemma4
def test_on_a_gpu_experts_beside_a_dense_mlp_are_the_decoders_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "features", lambda device: {Feature.EXPERTS})
    experts = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64}
    mixed, dense = transformers.Gemma4TextConfig(**experts), transformers.Gemma4TextConfig()
    assert has_decoder(mixed, torch.device("cpu"), torch.bfloat16)
    assert has_decoder(mixed, torch.device("cuda"), torch.bfloat16)
    assert not has_decoder(mixed, torch.device("cuda"), torch.float32)
    assert has_decoder(dense, torch.device("cuda"), torch.float32)
    assert has_decoder(transformers.Qwen3MoeConfig(), torch.device("cuda"), torch.bfloat16)


@gemma4
def test_a_gemma_4_that_reads_both_ways_is_refused() -> None:
    seen = transformers.Gemma4UnifiedTextConfig(use_bidirectional_attention="vision")
    assert decoder_config(seen) is not None
    with pytest.raises(UnsupportedModel, match="attends in both directions"):
        decoder_config(transformers.Gemma4UnifiedTextConfig(use_bidirectional_attention="all"))


@gemma4
def test_heads_of_a_wide_layer_without_a_kernel_are_refused(tmp_path: Path) -> None:
    tiny = {"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 6}
    transformers.Gemma4TextConfig(**tiny, head_dim=16, global_head_dim=520).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="up to 512, not 520"):
        choose(ModelOptions(model=str(tmp_path), device="cpu", load_format="dummy"))


@gemma4
def test_what_a_token_reads_has_the_inputs_of_layers(tmp_path: Path) -> None:
    tiny = {"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 6}
    transformers.Gemma4TextConfig(**tiny, hidden_size_per_layer_input=8, dtype="float32").save_pretrained(tmp_path)
    products = inspect(ModelOptions(model=str(tmp_path), device="cpu", load_format="dummy")).products
    assert products is not None
    sizes = {product.name: product.nbytes for product in products}
    assert sizes["inputs of layers"] == sizes["input gate"] == sizes["input"] == 6 * 8 * HIDDEN * 4


@gemma4
def test_layers_that_keep_nothing_read_the_last_of_their_kind() -> None:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention", "full_attention"]
    config = transformers.Gemma4TextConfig(
        num_hidden_layers=8, layer_types=kinds, num_kv_shared_layers=3, use_double_wide_mlp=True, intermediate_size=96
    )
    made = decoder_config(config)
    assert made is not None
    assert [layer.attention.shares for layer in made.layers] == [None] * 5 + [2, 4, 2]
    assert [layer.mlp.width for layer in made.layers] == [96] * 5 + [192] * 3
    assert [layer.attention.head_dim for layer in made.layers[-2:]] == [256, 512]
