"""The floor beside benchmark figures, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig, LlamaConfig

from octavo_worker.bench.ceilings import Ceilings
from octavo_worker.bench.floors import Costs, floor_seconds
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import Work
from octavo_worker.model.families import decoder_config
from octavo_worker.model.shards import Shards
from octavo_worker.ranks.rank import Rank

READS, MULTIPLIES = Ceilings(1e12, 1e30), Ceilings(1e30, 1e12)  # only one of the two counts


@pytest.fixture(scope="module")
def llama_8b() -> Costs:
    config = decoder_config(LlamaConfig(**{k: v for k, v in SHAPES["llama-8b"].items() if k != "model_type"}))
    assert config is not None
    costs = Costs.of(config, weight_bytes=0, kv_itemsize=2)
    return replace(costs, weight_bytes=2 * costs.weights)


def test_costs_of_a_public_shape(llama_8b: Costs) -> None:
    assert llama_8b.layers + 2 * llama_8b.head == pytest.approx(8.03e9, rel=0.001)  # its number of parameters
    assert llama_8b.kv_bytes == 128 * 1024  # 32 layers, 8 heads of 128, K and V, two bytes


@pytest.mark.parametrize(("name", "states"), [("qwen3.5-4b", 24 * 32 * 128 * 128 * 4), ("lfm2-1.2b", 0)])
def test_each_decode_reads_and_writes_the_matrices_of_its_state(name: str, states: int, tmp_path: Path) -> None:
    described = decoder_config(AutoConfig.from_pretrained(write_shape(name, tmp_path), trust_remote_code=False))
    assert described is not None
    costs = Costs.of(described, weight_bytes=0, kv_itemsize=2)
    assert costs.state_bytes == states
    work, stateless = [Work([i], 3) for i in range(4)], replace(costs, state_bytes=0)
    more = floor_seconds(costs, work, READS) - floor_seconds(stateless, work, READS)
    assert more == pytest.approx(2 * 4 * 2 * states / 1e12)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gemma3-27b", 27.0), ("qwen3.5-9b", 7.9), ("qwen3.5-35b-a3b", 2.9), ("granite-4-h-small", 8.8),
        ("nemotron-3-nano", 3.2),
    ],
)  # fmt: skip
def test_a_shape_has_the_weights_that_a_token_of_the_model_takes(name: str, billions: float, tmp_path: Path) -> None:
    described = decoder_config(AutoConfig.from_pretrained(write_shape(name, tmp_path), trust_remote_code=False))
    assert described is not None
    costs = Costs.of(described, weight_bytes=0, kv_itemsize=2)
    assert costs.layers + costs.head == pytest.approx(billions * 1e9, rel=0.02)


@pytest.mark.parametrize(
    ("name", "fields"), [("lfm2-1.2b", {"block_dim", "conv_dim"}), ("glm-4.7-flash", {"first_k_dense_replace"})]
)
def test_a_shape_states_what_a_peer_reads_beside_transformers(name: str, fields: set[str]) -> None:
    assert fields <= SHAPES[name].keys()


def test_a_lone_request_reads_all_weights_for_each_token(llama_8b: Costs) -> None:
    work = [Work(list(range(1000)), 3)]
    contexts = 1001 + 1002
    expected = 3 * 2 * llama_8b.weights + contexts * llama_8b.kv_bytes
    assert floor_seconds(llama_8b, work, READS) == pytest.approx(expected / 1e12)


def test_weights_of_fewer_bits_are_read_as_fast_as_they_are_small(llama_8b: Costs) -> None:
    halved = replace(llama_8b, weight_bytes=llama_8b.weights)
    work = [Work([1], 1001)]
    contexts = sum(range(2, 1002))
    expected = 1001 * halved.weights + contexts * halved.kv_bytes
    assert floor_seconds(halved, work, READS) == pytest.approx(expected / 1e12)


def test_a_shared_prefix_is_computed_and_read_once(llama_8b: Costs) -> None:
    shared = list(range(512))
    work = [Work([*shared, 1000 + i], 2) for i in range(4)]
    read = 2 * 2 * llama_8b.weights + (512 + 4 * 2) * llama_8b.kv_bytes
    assert floor_seconds(llama_8b, work, READS) == pytest.approx(read / 1e12)
    prompts = 2 * llama_8b.layers * (512 + 4) + 2 * llama_8b.head * 4
    pairs = llama_8b.pair_flops * (512**2 / 2 + 4 * (512 + 0.5))
    decodes = 2 * llama_8b.weights * 4 + llama_8b.pair_flops * 4 * 514
    assert floor_seconds(llama_8b, work, MULTIPLIES) == pytest.approx((prompts + pairs + decodes) / 1e12)


def test_a_sequence_that_has_ended_costs_nothing(llama_8b: Costs) -> None:
    long, short = Work(list(range(64)), 100), Work(list(range(100, 164)), 1)
    both = floor_seconds(llama_8b, [long, short], READS)
    assert both == pytest.approx(floor_seconds(llama_8b, [long], READS))


def test_each_group_of_requests_shares_its_own_prefix(llama_8b: Costs) -> None:
    first, second = list(range(512)), list(range(1000, 1256))
    work = [Work([*prefix, 5000 + i], 2) for i in range(3) for prefix in (first, second)]
    read = 2 * 2 * llama_8b.weights + (512 + 256 + 6 * 2) * llama_8b.kv_bytes
    assert floor_seconds(llama_8b, work, READS) == pytest.approx(read / 1e12)
    prompts = 2 * llama_8b.layers * (512 + 256 + 6) + 2 * llama_8b.head * 6
    pairs = llama_8b.pair_flops * (512**2 / 2 + 256**2 / 2 + 3 * (512 + 0.5) + 3 * (256 + 0.5))
    decodes = 2 * llama_8b.weights * 6 + llama_8b.pair_flops * 3 * (514 + 258)
    assert floor_seconds(llama_8b, work, MULTIPLIES) == pytest.approx((prompts + pairs + decodes) / 1e12)


def test_prefixes_branch_and_are_read_once_while_any_request_of_theirs_runs(llama_8b: Costs) -> None:
    """Against the distinct beginnings of all prompts, counted one by one."""
    trunk = [7] * 100
    lengths = [(40, 1), (40, 3), (60, 2), (60, 5)]
    work = [Work([*trunk, *[branch] * n, 100 + i], out) for i, (n, out) in enumerate(lengths) for branch in (1, 2)]
    work.append(Work(trunk, 4))
    read = 2 * 5 * llama_8b.weights
    for step in range(1, 5):
        running = [w for w in work if w.max_tokens > step]
        beginnings = {tuple(w.prompt[:n]) for w in running for n in range(1, len(w.prompt) + 1)}
        read += llama_8b.kv_bytes * (len(beginnings) + step * len(running))
    assert floor_seconds(llama_8b, work, READS) == pytest.approx(read / 1e12)


def test_a_rank_reads_and_computes_its_part_and_the_whole_is_their_sum() -> None:
    config = decoder_config(LlamaConfig(**{k: v for k, v in SHAPES["llama-70b"].items() if k != "model_type"}))
    assert config is not None
    whole = Costs.of(config, weight_bytes=0, kv_itemsize=2)
    for ranks in (2, 4, 8):
        part = Costs.of(Shards(config, Rank(0, ranks)).config, weight_bytes=0, kv_itemsize=2, ranks=ranks)
        assert (part.layers, part.head) == (whole.layers // ranks, whole.head // ranks)
        assert (part.kv_bytes, part.pair_flops) == (whole.kv_bytes // ranks, whole.pair_flops // ranks)


def test_ranks_that_share_a_head_of_keys_and_values_read_it_each(llama_8b: Costs) -> None:
    config = decoder_config(LlamaConfig(**{k: v for k, v in SHAPES["llama-8b"].items() if k != "model_type"}))
    assert config is not None
    part = Costs.of(Shards(config, Rank(0, 16)).config, weight_bytes=0, kv_itemsize=2, ranks=16)
    assert part.kv_bytes == llama_8b.kv_bytes // 8
