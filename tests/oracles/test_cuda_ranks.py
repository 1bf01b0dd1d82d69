"""Two ranks on two GPUs give what one GPU gives, but for rounding: every family, every way of generating. With
`--deterministic` nothing around a sequence changes a bit of it, as on one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch
from two_gpus import TWO_GPUS

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest, EngineSampling
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner, SampleSpec, SequenceStep, StepError, StepPlan
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.ranks.processes import Ranks

from .conftest import Pair, loader
from .drive import Engine, Orphans, assert_same, request
from .guessing import told
from .test_cuda import CONFIGS, VOCAB, options, random_model, random_requests
from .test_cuda_speculation import drafted, drafting
from .test_ranks import all_kinds, assert_close
from .test_sliding import prompt

pytestmark = TWO_GPUS

FAMILIES = [
    "llama", "llama-yarn", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "opt", "gpt2", "olmo2",
]  # fmt: skip
CLOSE = 2e-4  # in float32, of log-probabilities


@contextmanager
def on_two(one: ModelOptions) -> Iterator[ModelRunner]:
    """A runner with the options of one GPU on two ranks, for as long as the context lasts."""
    asked = msgspec.structs.replace(one, tensor_parallel=2)
    ranks = Ranks.start(asked)
    try:
        yield load_runner(asked, ranks)
    finally:
        ranks.close()


@pytest.fixture(scope="module")
def ranked() -> Iterator[Callable[[ModelOptions], ModelRunner]]:
    """Runners on two ranks, which stay."""
    with ExitStack() as stack:
        load = cache(lambda asked: stack.enter_context(on_two(ModelOptions.from_json(asked))))
        yield lambda one: load(one.to_json())


@pytest.fixture(scope="module")
def gpu_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    return loader(tmp_path_factory, "cuda")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, gpu_pair: Callable[[str], Pair]) -> None:
    pair = gpu_pair(name)
    with on_two(like(pair)) as runner:
        assert runner.numerics == f"{pair.runner.numerics} tp2"
        assert runner.num_blocks == pair.runner.num_blocks
        assert_close(Engine(runner).run(all_kinds()), Engine(pair.runner).run(all_kinds()), CLOSE)


def like(pair: Pair) -> ModelOptions:
    fixed = {"device": "cuda", "dtype": "float32", "num_blocks": 513, "max_running": 64, "host_cache_bytes": 8 << 20}
    return ModelOptions(model=str(pair.folder), **fixed)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(CONFIGS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def exact(folder: Path, ranked: Callable[..., ModelRunner]) -> ModelRunner:
    """Deterministic, with room for drafts."""
    return ranked(drafting(folder))


@pytest.fixture(scope="module")
def requests() -> list[AddRequest]:
    return random_requests(96)


def test_graphs_change_nothing(folder: Path, ranked: Callable[..., ModelRunner], requests: list[AddRequest]) -> None:
    """Nor do they where sums depend on the batch."""
    graphs, plain = (Engine(ranked(options(folder, cuda_graphs=graphs))).run(requests) for graphs in (True, False))
    assert_same(graphs, plain)


def test_alone_as_in_a_batch(exact: ModelRunner, requests: list[AddRequest]) -> None:
    together = Engine(exact).run(requests)
    for one in requests[::5]:
        alone = Engine(exact).run([one])
        assert (alone.tokens[one.id], alone.logprobs[one.id]) == (together.tokens[one.id], together.logprobs[one.id])


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption_changes_no_bit(exact: ModelRunner, requests: list[AddRequest], mode: str) -> None:
    policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
    engine = Engine(exact, num_blocks=60, num_host_blocks=exact.num_host_blocks, policy=policy)
    tight = engine.run(requests)
    assert tight.stats.preemptions > 0
    assert (tight.stats.swapped_out > 0) == (mode == "swap")
    assert_same(tight, Engine(exact).run(requests))
    assert engine.scheduler.pool.used == 0


def test_drafts_change_no_bit(exact: ModelRunner, requests: list[AddRequest]) -> None:
    plain = Engine(exact).run(requests)
    answers = drafted(exact, told(plain, requests, 0.7)).run(requests)
    assert answers.stats.accepted_tokens > 50
    assert_same(answers, plain)


def test_other_ranks_go_on_with_the_next_token(
    folder: Path, exact: ModelRunner, ranked: Callable[..., ModelRunner], requests: list[AddRequest]
) -> None:
    """Which launch kernel by kernel."""
    asked = [one for one in requests if one.sampling.beam is None]
    orphans = Orphans.of(asked, Engine(exact).run(asked), random.Random(5))
    heirs = ranked(options(folder, deterministic=True, cuda_graphs=False))
    orphans.assert_gone_on(Engine(heirs, token_budget=100).run(orphans.requests))


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8"])
def test_a_sequence_larger_than_the_pool_keeps_its_bits(kv_dtype: str, tmp_path: Path) -> None:
    """Attention of each rank reads its heads of the oldest blocks on the host."""
    folder = random_model(CONFIGS["qwen3"], tmp_path)
    asked = [request("long", prompt(280, 3), max_tokens=60, logprobs=2, temperature=0.9, seed=4)]
    with on_two(options(folder, max_running=16, kv_dtype=kv_dtype, deterministic=True)) as runner:
        assert runner.reads_host
        tight = Engine(runner, num_blocks=9, num_host_blocks=61, token_budget=70).run(asked)
        assert tight.cold_steps > 60
        assert_same(tight, Engine(runner).run(asked))


@pytest.mark.parametrize("weights", ["auto", "fp8", "int8", "int4"])
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_quantised_parts_are_those_of_the_whole(weights: str, load_format: str) -> None:
    """To what rounding in 16 bits leaves: ranks round codes of activations by parts of rows, which costs more."""
    named = {"load_format": load_format, "quantization": weights}
    one = ModelOptions(model="demo", device="cuda", num_blocks=300, max_running=16, **named)  # type: ignore[arg-type]
    asked = [request(str(i), [5 + i, *range(300, 330 + 9 * i)], max_tokens=1, prompt_logprobs=0) for i in range(6)]
    alone = Engine(load_runner(one)).run(asked)
    with on_two(one) as runner:
        both = Engine(runner).run(asked)
    for name in alone.prompt_logprobs:
        wanted, found = (
            torch.tensor([score.logprob for score in answers.prompt_logprobs[name] or [] if score is not None])
            for answers in (alone, both)
        )
        assert (found - wanted).abs().mean() < 0.02 + 0.1 * wanted.std()


def test_memory_that_is_not_named_is_what_the_least_rank_has() -> None:
    one = ModelOptions(model="demo", device="cuda", gpu_memory=0.5, max_running=8)
    asked = [request("a", list(range(300, 320)), max_tokens=30)]
    with on_two(one) as runner:
        assert runner.num_blocks == load_runner(one).num_blocks, "as many as its sequences can fill"
        assert len(Engine(runner).run(asked).tokens["a"][0]) == 30


def test_a_sequence_to_blame_costs_itself_only(exact: ModelRunner) -> None:
    spec = SampleSpec(EngineSampling(seed=1, max_tokens=5, temperature=0.0), 0, [], [])
    good = SequenceStep([3, 4, 5], 0, [1], [spec])
    before = exact.launch(StepPlan([good], 0)).result().sequences
    with pytest.raises(StepError, match="vocabulary") as failure:
        exact.launch(StepPlan([good, SequenceStep([VOCAB], 0, [2], [spec])], 0)).result()
    assert failure.value.sequence == 1
    assert exact.launch(StepPlan([good], 0)).result().sequences == before


def test_a_sliding_window(gpu_pair: Callable[[str], Pair]) -> None:
    pair = gpu_pair("mistral")
    asked = [request(str(i), prompt(100 + i, i), n=1 + i, temperature=1.0, max_tokens=90) for i in range(3)]
    with on_two(like(pair)) as runner:
        tight = Engine(runner, num_blocks=25, token_budget=80).run(asked)
    assert tight.most_blocks <= 24
    assert tight.tokens == Engine(pair.runner, num_blocks=25, token_budget=80).run(asked).tokens
