"""The floor beside benchmark figures, against sums done by hand."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig

from octavo_worker.bench.ceilings import Ceilings
from octavo_worker.bench.floors import Costs, floor_seconds
from octavo_worker.bench.shapes import SHAPES
from octavo_worker.bench.workloads import Work
from octavo_worker.model.config import decoder_config

READS, MULTIPLIES = Ceilings(1e12, 1e30), Ceilings(1e30, 1e12)  # only one of the two counts


@pytest.fixture(scope="module")
def llama_8b() -> Costs:
    config = decoder_config(LlamaConfig(**{k: v for k, v in SHAPES["llama-8b"].items() if k != "model_type"}))
    assert config is not None
    return Costs.of(config, itemsize=2, kv_itemsize=2)


def test_costs_of_a_public_shape(llama_8b: Costs) -> None:
    assert llama_8b.layers + 2 * llama_8b.head == pytest.approx(8.03e9, rel=0.001)  # its number of parameters
    assert llama_8b.kv_bytes == 128 * 1024  # 32 layers, 8 heads of 128, K and V, two bytes


def test_a_lone_request_reads_all_weights_for_each_token(llama_8b: Costs) -> None:
    work = [Work(list(range(1000)), 3)]
    contexts = 1001 + 1002
    expected = 3 * 2 * llama_8b.weights + contexts * llama_8b.kv_bytes
    assert floor_seconds(llama_8b, work, READS) == pytest.approx(expected / 1e12)


def test_a_shared_prefix_is_computed_and_read_once(llama_8b: Costs) -> None:
    shared = list(range(512))
    work = [Work([*shared, 1000 + i], 2) for i in range(4)]
    read = 2 * 2 * llama_8b.weights + (512 + 4 * 2) * llama_8b.kv_bytes
    assert floor_seconds(llama_8b, work, READS) == pytest.approx(read / 1e12)
    prompts = 2 * llama_8b.layers * (512 + 4) + 2 * llama_8b.head * 4
    pairs = llama_8b.pair_flops * (512**2 / 2 + 4 * (512 + 0.5))
    decodes = 2 * llama_8b.weights * 4 + llama_8b.pair_flops * 4 * 514
    assert floor_seconds(llama_8b, work, MULTIPLIES) == pytest.approx((prompts + pairs + decodes) / 1e12)


def test_who_has_ended_costs_nothing(llama_8b: Costs) -> None:
    long, short = Work(list(range(64)), 100), Work(list(range(100, 164)), 1)
    both = floor_seconds(llama_8b, [long, short], READS)
    assert both == pytest.approx(floor_seconds(llama_8b, [long], READS))
