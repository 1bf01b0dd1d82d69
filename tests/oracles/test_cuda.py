"""The engine on a GPU: logits as transformers computes them, graphs as without graphs, nothing lost or leaked."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen3Config

from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.messages import AddRequest, BeamOptions, EngineSampling
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner, SampleRow, StepPlan
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.sampler import sample

from .drive import Engine, request

pytestmark = pytest.mark.gpu

VOCAB, CONTEXT = 211, 2048
COMMON = {
    "vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": None, "initializer_range": 0.2,
}  # fmt: skip
CONFIGS = {"llama": LlamaConfig(**COMMON), "qwen3": Qwen3Config(**COMMON, head_dim=64, tie_word_embeddings=True)}


def random_model(config: PreTrainedConfig, folder: Path) -> Path:
    """Its folder, with random weights in it."""
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False).save_pretrained(folder)
    return folder


def options(folder: Path, **more: object) -> ModelOptions:
    fixed = {"num_blocks": 513, "host_cache_bytes": 4 << 20, "max_running": 64, "device": "cuda", "dtype": "bfloat16"}
    return ModelOptions(model=str(folder), **{**fixed, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(CONFIGS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> PreTrainedModel:
    """In float32, on the CPU, with the weights as they are."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()


@pytest.fixture(scope="module")
def rounded(folder: Path) -> PreTrainedModel:
    """The same in bfloat16: how much that loses is the measure of what we may lose."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, trust_remote_code=False).eval()


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    return load_runner(options(folder))


def random_requests(count: int, **sampling: object) -> list[AddRequest]:
    """Greedy, seeded, four samples, beams, penalties, scores; many begin alike."""
    rng = random.Random(7)
    prefixes = [[rng.randrange(VOCAB) for _ in range(48)] for _ in range(4)]
    kinds: list[dict[str, object]] = [
        {},
        {"temperature": 0.9, "top_p": 0.95, "seed": 3},
        {"temperature": 1.0, "top_k": 20, "min_p": 0.02, "seed": 4, "logprobs": 3},
        {"n": 4, "temperature": 1.0, "seed": 5},
        {"n": 2, "beam": BeamOptions(3, 1.0, False), "stop_token_ids": list(range(0, VOCAB, 9))},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"min_tokens": 9, "stop_token_ids": list(range(0, VOCAB, 3)), "logit_bias": {5: 4.0}},
        {"prompt_logprobs": 2, "logprobs": 0},
    ]
    requests = []
    for number in range(count):
        prompt = rng.choice(prefixes)[: rng.randint(0, 48)] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 24))]
        kind = {**kinds[number % len(kinds)], "max_tokens": rng.randint(1, 30), **sampling}
        requests.append(request(str(number), prompt, **kind))  # type: ignore[arg-type]
    return requests


def logprobs(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float().log_softmax(-1)


def test_prompt_scores_are_those_of_transformers(
    runner: ModelRunner, oracle: PreTrainedModel, rounded: PreTrainedModel
) -> None:
    """In chunks, beside other sequences: every position of every prompt."""
    rng = random.Random(3)
    prompts = {str(n): [rng.randrange(VOCAB) for _ in range(n)] for n in (2, 15, 16, 17, 33, 255, 300)}
    requests = [request(name, prompt, max_tokens=1, prompt_logprobs=1) for name, prompt in prompts.items()]
    answers = Engine(runner, token_budget=100).run(requests)
    ours, theirs = [], []
    for name, prompt in prompts.items():
        scores = answers.prompt_logprobs[name]
        assert scores is not None
        assert scores[0] is None
        wanted, close = (
            logprobs(model, prompt)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
            for model in (oracle, rounded)
        )
        got = torch.tensor([score.logprob for score in scores[1:] if score is not None])
        ours.append((got - wanted).abs())
        theirs.append((close - wanted).abs())
    assert torch.cat(ours).mean() <= 1.2 * torch.cat(theirs).mean()
    assert torch.cat(ours).max() <= 1.5 * torch.cat(theirs).max()


def test_the_transformers_route_scores_alike(folder: Path, oracle: PreTrainedModel, rounded: PreTrainedModel) -> None:
    """transformers' own code around our attention: the prompt in chunks, then decodes."""
    fixed = options(folder)
    model, length = load_model(fixed, decoders=False)
    routed = CudaRunner(model, CacheConfig(65, 16), min(length, 512), 512, max_running=64)
    rng = random.Random(8)
    prompts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (1, 16, 33, 100)]
    requests = [request(str(i), prompt, max_tokens=20) for i, prompt in enumerate(prompts)]
    answers = Engine(routed, token_budget=70).run(requests)
    for i, prompt in enumerate(prompts):
        output = answers.tokens[str(i)][0]
        wanted, close = (logprobs(model, prompt + output)[len(prompt) - 1 : -1] for model in (oracle, rounded))
        lost = wanted.max(-1).values - wanted.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert lost.max() <= 2 * (close - wanted).abs().max(), (i, lost)


def test_decoded_tokens_are_likely_ones(runner: ModelRunner, oracle: PreTrainedModel, rounded: PreTrainedModel) -> None:
    """Greedy decoding through graphs of many sizes: what is chosen is, to transformers, the best but for rounding."""
    rng = random.Random(4)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.choice([1, 15, 16, 31, 100]))] for _ in range(40)]
    requests = [request(str(i), prompt, max_tokens=8 + i) for i, prompt in enumerate(prompts)]
    answers = Engine(runner).run(requests)
    for i, prompt in enumerate(prompts):
        output = answers.tokens[str(i)][0]
        assert len(output) == 8 + i
        wanted, close = (logprobs(model, prompt + output)[len(prompt) - 1 : -1] for model in (oracle, rounded))
        lost = wanted.max(-1).values - wanted.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert lost.max() <= 2 * (close - wanted).abs().max(), (i, lost)


def test_graphs_change_nothing(folder: Path, runner: ModelRunner) -> None:
    plain = load_runner(options(folder, cuda_graphs=False))
    for requests in (random_requests(48), random_requests(24, temperature=1.0)):
        one, other = Engine(runner).run(requests), Engine(plain).run(requests)
        assert one.tokens == other.tokens
        assert one.logprobs == other.logprobs
        assert one.prompt_logprobs == other.prompt_logprobs


def test_a_step_tells_how_long_the_device_waited_for_it(runner: ModelRunner) -> None:
    scheduler = Engine(runner).scheduler
    scheduler.add(request("a", [1, 2, 3], max_tokens=3))
    gaps = []
    for pause in (0.0, 0.2, 0.0):
        time.sleep(pause)
        plan = scheduler.plan()
        assert plan is not None
        result = runner.launch(plan).result()
        gaps.append(result.gap_s)
        scheduler.commit(plan, result)
    assert gaps[1] > 0.2 > gaps[2] > 0


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_cache_in_eight_bits_loses_little(
    folder: Path, oracle: PreTrainedModel, rounded: PreTrainedModel, kv_dtype: str
) -> None:
    """Scores of prompts, computed in chunks, and of what is decoded after them, in graphs and without."""
    rng = random.Random(3)
    prompts = {str(n): [rng.randrange(VOCAB) for _ in range(n)] for n in (2, 15, 16, 17, 33, 255, 300)}
    requests = [request(name, p, max_tokens=20, prompt_logprobs=0, logprobs=0) for name, p in prompts.items()]
    runner, plain = (load_runner(options(folder, kv_dtype=kv_dtype, cuda_graphs=graphs)) for graphs in (True, False))
    answers, again = (Engine(one, token_budget=100).run(requests) for one in (runner, plain))
    assert answers.logprobs == again.logprobs
    ours, theirs = [], []
    for name, prompt in prompts.items():
        tokens = prompt + answers.tokens[name][0]
        scores = [*(answers.prompt_logprobs[name] or [])[1:], *answers.logprobs[name][0]]
        wanted, close = (
            logprobs(model, tokens)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
            for model in (oracle, rounded)
        )
        ours.append((torch.tensor([score.logprob for score in scores if score is not None]) - wanted).abs())
        theirs.append((close - wanted).abs())
    assert torch.cat(ours).mean() <= (2 if kv_dtype == "int8" else 8) * torch.cat(theirs).mean()


def lose_nothing(runner: ModelRunner, mode: str, requests: list[AddRequest]) -> None:
    """With a pool that is too small for `requests`."""
    roomy = Engine(runner).run(requests)
    engine = Engine(runner, num_blocks=60, num_host_blocks=runner.num_host_blocks, policy=PreemptionPolicy(mode))
    short = engine.run(requests)
    assert short.stats.preemptions > 0
    assert {k: set(v) for k, v in short.tokens.items()} == {k: set(v) for k, v in roomy.tokens.items()}
    engine.scheduler.check_integrity()
    assert engine.scheduler.pool.used == 0


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_eight_bits_are_swapped_and_copied_as_others(folder: Path, mode: str) -> None:
    lose_nothing(load_runner(options(folder, kv_dtype="int8")), mode, random_requests(100))


@pytest.mark.beyond_plain
def test_reading_a_shared_prefix_once_changes_nothing(runner: ModelRunner) -> None:
    rng = random.Random(6)
    prefix = [rng.randrange(VOCAB) for _ in range(1100)]
    requests = [request(str(i), [*prefix, i, rng.randrange(VOCAB)], max_tokens=12 + i, logprobs=0) for i in range(10)]
    together, alone = Engine(runner), Engine(runner, shared_reading=None)
    assert together.run(requests).logprobs == alone.run(requests).logprobs


def test_what_comes_from_the_host_may_leave_for_it_at_once(runner: ModelRunner) -> None:
    runner.kv_cache[5].copy_(torch.randn_like(runner.kv_cache[5]))
    torch.cuda.synchronize()  # the runner's stream waits for no other
    host = runner.first_host_block
    runner.launch(StepPlan([], 0, swap_out=[(5, host + 1)])).result()
    runner.launch(StepPlan([], 0, swap_in=[(host + 1, 9)], swap_out=[(9, host + 2)])).result()
    assert torch.equal(runner.host_cache[2].cpu(), runner.kv_cache[5].cpu())


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_nothing_is_lost_or_leaked_when_memory_is_short(runner: ModelRunner, mode: str) -> None:
    lose_nothing(runner, mode, random_requests(200))


def test_samples_that_ask_for_more_are_those_of_the_cpu() -> None:
    rng = random.Random(9)
    specs = [
        SampleRow(
            EngineSampling(
                seed=i, max_tokens=9, temperature=rng.choice([0.0, 0.8]), top_k=rng.choice([0, 30]),
                repetition_penalty=rng.choice([1.0, 1.4]), presence_penalty=rng.choice([0.0, 0.7]),
                frequency_penalty=rng.choice([0.0, 0.3]), logit_bias=rng.choice([{}, {4: 2.5}]),
                logprobs=rng.choice([None, 0, 3]),
            ),
            0, 40, [rng.randrange(VOCAB) for _ in range(30)], [rng.randrange(VOCAB) for _ in range(10)],
            rng.choice([(), (1, 2, 3)]), rng.choice([0, 0, 6]),
        )
        for i in range(60)
    ]  # fmt: skip
    logits = torch.randn(60, VOCAB, generator=torch.Generator().manual_seed(2)) * 4
    cpu, gpu = sample(logits.clone(), specs).result(), sample(logits.cuda(), specs).result()
    for one, other in zip(cpu, gpu, strict=True):
        assert one.token == other.token
        assert [c[0] for c in one.candidates] == [c[0] for c in other.candidates]
        assert [c[1] for c in one.candidates] == pytest.approx([c[1] for c in other.candidates], abs=1e-4)
        assert (one.logprob is None) == (other.logprob is None)
        if one.logprob is not None and other.logprob is not None:
            assert one.logprob.logprob == pytest.approx(other.logprob.logprob, abs=1e-4)
