"""Two groups of blocks on a GPU: no bit tells of them, whatever happens around a sequence, in graphs as without."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from proposers import speculate
from transformers import Exaone4Config, Gemma3TextConfig, GptOssConfig, PreTrainedConfig

from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.step import StepPlan
from octavo_worker.contract.windows import BlockMoves, WindowBlocks
from octavo_worker.engine.drafts import ModelProposer, Speculation
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.runner.cuda.runner import CudaRunner

from .drive import Answers, Engine, Orphans, assert_same, request
from .guessing import told
from .test_cuda import COMMON, VOCAB, options, random_model, random_requests
from .test_shapes import FREE

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

WINDOW, SIZE, BLOCKS, RUNNING, MOST, BUDGET = 100, 16, 701, 64, 5, 512
LAYERS: dict[str, Any] = {
    **COMMON, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW, "head_dim": 64,
}  # fmt: skip
MODELS: dict[str, PreTrainedConfig] = {
    "gemma3": Gemma3TextConfig(**LAYERS),
    "exaone4": Exaone4Config(**LAYERS),
    "gpt_oss": GptOssConfig(**LAYERS, num_local_experts=8, num_experts_per_tok=2),
}
ALL = dict(MODELS)
if hasattr(transformers, "Gemma4TextConfig"):  # whose full layers have other heads: not deterministic on a GPU
    ALL["gemma4"] = transformers.Gemma4TextConfig(
        **LAYERS, global_head_dim=512, hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCAB
    )
LIVE = Capacity(1, SIZE, window=WINDOW).sliding_blocks(1)


class Made:
    """A model's folder, and its runners by their options."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.load = cache(self._load)
        self.one_group = cache(self._one_group)

    def _options(self, more: dict[str, Any]) -> Any:
        fixed = {"num_blocks": BLOCKS, "host_cache_bytes": 256 << 20, "max_running": RUNNING, "token_budget": BUDGET}
        return options(self.folder, **fixed | more)

    def _load(self, **more: Any) -> CudaRunner:
        runner = load_runner(self._options(more))
        assert isinstance(runner, CudaRunner)
        assert runner.windows is not None
        assert runner.windows.window == WINDOW
        assert runner.windows.num_host_blocks > 100
        return runner

    def _one_group(self, **more: Any) -> CudaRunner:
        """All of whose layers keep whole sequences."""
        kept = more.pop("cache", None)
        model, length = load_model(self._options(more))
        runner = CudaRunner(model, CacheConfig(BLOCKS, SIZE, dtype=kept), length, BUDGET, max_running=RUNNING)
        runner.warm_up()
        assert runner.windows is None
        return runner


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(random_model(MODELS[request.param], tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def exact(made: Made) -> CudaRunner:
    return made.load(deterministic=True)


@pytest.fixture(scope="module")
def requests() -> list[AddRequest]:
    return across_windows(48)


def across_windows(count: int) -> list[AddRequest]:
    """Prompts and answers within a window, across it and far beyond it, some of which begin alike."""
    rng = random.Random(11)
    prefix = [rng.randrange(VOCAB) for _ in range(300)]
    asked = []
    for number in range(count):
        length = rng.choice([1, 15, 16, 17, 40, 150, 400])
        prompt = prefix[: rng.choice([0, 0, 48, 300])] + [rng.randrange(VOCAB) for _ in range(length)]
        sampling = {"temperature": 0.9 * (number % 2), "seed": number, "n": 1 + 2 * (number % 8 == 7)}
        asked.append(request(str(number), prompt, max_tokens=rng.randint(20, 140), logprobs=0, **sampling))  # type: ignore[arg-type]
    return asked


@pytest.fixture(scope="module")
def expected(made: Made, requests: list[AddRequest]) -> Answers:
    """Answers of one group."""
    return Engine(made.one_group(deterministic=True)).run(requests)


def tight(runner: CudaRunner, *, beside: int) -> WindowBlocks:
    """The first blocks of windows, with room for so many sequences."""
    assert runner.windows is not None
    assert 1 + beside * LIVE <= runner.windows.num_blocks
    return replace(runner.windows, num_blocks=1 + beside * LIVE)


def test_two_groups_answer_as_one(exact: CudaRunner, requests: list[AddRequest], expected: Answers) -> None:
    assert_same(Engine(exact).run(requests), expected)


@pytest.mark.parametrize("name", ALL)
def test_rows_that_depend_on_their_batch_do_so_in_both(name: str, tmp_path: Path, requests: list[AddRequest]) -> None:
    """Without `--deterministic`: the same batches, the same bits, in graphs and without."""
    made = Made(random_model(ALL[name], tmp_path))
    for every in (requests, random_requests(64)):
        one = Engine(made.one_group()).run(every)
        for graphs in (True, False):
            two = Engine(made.load(cuda_graphs=graphs)).run(every)
            assert two.stats.steps == one.stats.steps
            assert_same(two, one)


def test_launches_one_by_one_are_as_graphs(made: Made, requests: list[AddRequest], expected: Answers) -> None:
    assert_same(Engine(made.load(deterministic=True, cuda_graphs=False)).run(requests), expected)


@pytest.mark.parametrize("budget", [65, 130])
def test_prompts_may_be_cut_anywhere(
    exact: CudaRunner, requests: list[AddRequest], expected: Answers, budget: int
) -> None:
    """In the memory of some windows, and a chunk."""
    cut = Engine(exact, token_budget=budget, windows=tight(exact, beside=20)).run(requests)
    assert_same(cut, expected)


def test_company_changes_nothing(exact: CudaRunner, requests: list[AddRequest], expected: Answers) -> None:
    engine = Engine(exact)
    for one in requests[::6]:
        alone = engine.run([one])
        assert (alone.tokens[one.id], alone.logprobs[one.id]) == (expected.tokens[one.id], expected.logprobs[one.id])


@pytest.mark.parametrize("beside", [60, 12])
def test_a_cached_prefix_changes_nothing(
    exact: CudaRunner, requests: list[AddRequest], expected: Answers, beside: int
) -> None:
    """Where windows are still there, and where those of most prompts are gone."""
    engine = Engine(exact, windows=tight(exact, beside=beside))
    engine.run(requests)
    again = engine.run(requests)
    assert beside < 60 or sum(again.cached.values()) > 1000
    assert beside > 12 or again.stats.windowless_tokens > 0
    assert_same(again, expected)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_groups_that_share_memory_change_nothing(
    made: Made, exact: CudaRunner, requests: list[AddRequest], expected: Answers, mode: str
) -> None:
    layouts = exact.layout, exact.window_layout
    slab_bytes = math.lcm(*(layout.block_bytes for layout in layouts if layout is not None))
    runner = made.load(deterministic=True, num_blocks=None, kv_cache_bytes=150 * slab_bytes)
    assert runner.windows is not None
    assert runner.windows.slabs is not None
    hosts, policy = runner.num_host_blocks if mode == "swap" else 0, PreemptionPolicy(mode)  # type: ignore[arg-type]
    pressed = Engine(runner, num_host_blocks=hosts, reads_host=False, policy=policy).run(requests)
    assert pressed.stats.preemptions > 0
    assert_same(pressed, expected)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("short", ["blocks", "windows"])
def test_preemption_changes_nothing(
    exact: CudaRunner, requests: list[AddRequest], expected: Answers, short: str, mode: str
) -> None:
    memory: dict[str, Any] = {"num_blocks": 110} if short == "blocks" else {"windows": tight(exact, beside=12)}
    policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
    hosts = exact.num_host_blocks if mode == "swap" else 0
    pressed = Engine(exact, num_host_blocks=hosts, reads_host=False, policy=policy, **memory).run(requests)
    assert pressed.stats.preemptions > 0
    assert (pressed.stats.swapped_out > 0) == (mode == "swap")
    assert_same(pressed, expected)


def test_another_engine_goes_on_with_the_next_token(made: Made, requests: list[AddRequest], expected: Answers) -> None:
    """Which launches kernel by kernel, and has the cuts of a smaller budget."""
    orphans = Orphans.of(requests, expected, random.Random(5))
    heirs = Engine(made.load(deterministic=True, cuda_graphs=False), token_budget=100).run(orphans.requests)
    orphans.assert_gone_on(heirs)


def test_a_sequence_of_which_most_lies_on_the_host(made: Made, exact: CudaRunner) -> None:
    """Its windows never do: a staged step gathers layers that see all, and no others."""
    assert exact.reads_host
    asked = [request("a", [(7 * at) % VOCAB for at in range(600)], max_tokens=60, temperature=0.7, logprobs=1)]
    whole = Engine(made.one_group(deterministic=True)).run(asked)
    cold = Engine(exact, num_blocks=13, num_host_blocks=200, token_budget=130, windows=tight(exact, beside=2))
    answers = cold.run(asked)
    assert answers.cold_steps > 60
    assert_same(answers, whole)


def test_drafts_change_no_bit(made: Made, requests: list[AddRequest], expected: Answers) -> None:
    """Drafts of which 7 in 10 are right, with ample and with few blocks."""
    runner = made.load(deterministic=True, speculate="ngram", speculate_most=MOST)
    for windows in (runner.windows, tight(runner, beside=20)):
        speculation = speculate(told(expected, requests, 0.7), MOST, most_samples=runner.most_samples)
        answers = Engine(runner, speculation=speculation, windows=windows).run(requests)
        assert answers.stats.drafted_tokens > 100
        assert_same(answers, expected)


def test_a_draft_that_is_the_target_is_always_right(made: Made) -> None:
    """Its passes follow each other on the device, in the table of the first group."""
    runner = made.load(deterministic=True, speculate=f"draft:{made.folder}", speculate_most=MOST)
    asked = [request(str(i), [5 + i] * 110, max_tokens=61, temperature=0.9, seed=i) for i in range(4)]
    plain = Engine(runner).run(asked)
    speculation = Speculation(ModelProposer(), FREE, MOST, most_samples=runner.most_samples)
    drafted = Engine(runner, speculation=speculation).run(asked)
    assert_same(drafted, plain)
    assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 100


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_cache_in_eight_bits(made: Made, requests: list[AddRequest], kv_dtype: str) -> None:
    """Bytes of a block are others in each group; the bits are those of one."""
    runner = made.load(deterministic=True, kv_dtype=kv_dtype)
    one = made.one_group(deterministic=True, kv_dtype=kv_dtype, cache=runner.kv_cache.dtype)
    plain = Engine(one).run(requests)
    assert_same(Engine(runner).run(requests), plain)
    policy = PreemptionPolicy("swap")
    few = {"windows": tight(runner, beside=12), "num_host_blocks": runner.num_host_blocks, "reads_host": False}
    pressed = Engine(runner, policy=policy, **few).run(requests)
    assert pressed.stats.swapped_out > 0
    assert_same(pressed, plain)


def test_blocks_of_windows_move_by_themselves(exact: CudaRunner) -> None:
    """Out, back, copied, and at once out again and back."""
    assert exact.windows is not None
    assert exact.window_pools is not None
    device, first = exact.window_pools.device, exact.windows.first_host_block
    device[:6].zero_()
    device[1].fill_(7)
    torch.cuda.synchronize()  # the runner has a stream of its own
    exact.launch(StepPlan([], 0, windows=BlockMoves(swap_out=[(1, first + 1)]))).result()
    device[1].zero_()
    torch.cuda.synchronize()
    moves = BlockMoves(copies=[(2, 4)], swap_out=[(2, first + 3)], swap_in=[(first + 1, 2)])
    exact.launch(StepPlan([], 0, windows=moves)).result()
    exact.launch(StepPlan([], 0, windows=BlockMoves(swap_in=[(first + 3, 5)]))).result()
    assert all(bool((device[block] == 7).all()) for block in (2, 4, 5))
    assert not device[1].any()
