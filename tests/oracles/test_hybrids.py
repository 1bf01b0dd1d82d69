"""Families with recurrent layers are what transformers computes, alone, in a batch and in pieces of any length."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from forked_ranks import forked_ranks
from transformers import AutoModelForMultimodalLM, PreTrainedModel

from octavo_kernels.features import Feature
from octavo_worker.assembly.choices import choose
from octavo_worker.assembly.inspection import inspect
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import StepPlan
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.runner.paged import PagedRunner

from .by_hand import ByHand, Said
from .hybrid import HYBRID, HYBRID_WRAPPED
from .tiny import CONTEXT, VOCAB
from .zoo import precise, save, widen

CLOSE = 1e-4
DENSE = [name for name in HYBRID if not any(word in name for word in ("_moe", "experts", "next"))]
"""Experts of tiny models are no whole panels, so that they have no codes."""
LENGTHS = (1, 2, 7, 40)
NEW = 12


def prompts() -> list[list[int]]:
    rng = random.Random(11)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, PreTrainedModel]]:
    @cache
    def made(name: str) -> tuple[Path, PreTrainedModel]:
        folder = tmp_path_factory.mktemp(name)
        return folder, save(name, folder, HYBRID[name], width=1.0)

    return made


def options_of(folder: Path, **options: object) -> ModelOptions:
    sizes = {"num_blocks": 65, "state_slots": 40, "max_model_len": CONTEXT}
    fixed = {"device": "cpu", "dtype": "float32", "threads": 1}
    return ModelOptions(model=str(folder), **fixed | sizes | options)  # type: ignore[arg-type]


def runner_of(folder: Path, **options: object) -> PagedRunner:
    named = {
        "device": "cpu",
        "dtype": "float32",
        "num_blocks": 65,
        "threads": 1,
        "state_slots": 40,
        "max_model_len": CONTEXT,
        **options,
    }
    runner = load_runner(ModelOptions(model=str(folder), **named))  # type: ignore[arg-type]
    assert isinstance(runner, PagedRunner)
    assert isinstance(runner.model, Decoder)
    return runner


def assert_same(one: list[Said], other: list[Said]) -> None:
    assert [said.text for said in one] == [said.text for said in other]
    assert [said.logprobs for said in one] == [said.logprobs for said in other]


@pytest.mark.parametrize("name", HYBRID)
def test_answers_are_those_of_transformers(name: str, folders: Callable[[str], tuple[Path, PreTrainedModel]]) -> None:
    folder, oracle = folders(name)
    oracle, runner = precise(oracle), runner_of(folder)
    assert "state-f32" in runner.numerics
    for said, prompt in zip(ByHand(runner).answers(prompts(), NEW), prompts(), strict=True):
        with torch.inference_mode():
            logits = oracle(torch.tensor([said.text])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert said.text[len(prompt) :] == logits.argmax(-1).tolist()
        assert said.logprobs == pytest.approx(logits.max(-1).values.tolist(), abs=CLOSE)


def test_states_go_to_the_host_and_back(folders: Callable[[str], tuple[Path, PreTrainedModel]]) -> None:
    runner = runner_of(folders("lfm2")[0], host_cache_bytes=1 << 20)
    host = runner.first_host_state_slot + 1
    runner.states[1].fill_(7)
    runner.launch(StepPlan([], 0, state_out=[(1, host)]))
    runner.states[1].zero_()
    runner.launch(StepPlan([], 0, state_in=[(host, 2)]))
    assert (runner.states[2] == 7).all()
    assert not runner.states[1].any()


@pytest.mark.parametrize("name", HYBRID_WRAPPED)
def test_a_text_part_answers_as_the_whole(name: str, tmp_path: Path) -> None:
    """Nothing is read of images and of drafts."""
    torch.manual_seed(3)
    made = AutoModelForMultimodalLM.from_config(
        HYBRID_WRAPPED[name], attn_implementation="eager", trust_remote_code=False
    )
    model: PreTrainedModel = made.float().eval()
    widen(model, 1.0)
    model.save_pretrained(tmp_path)
    (said,) = ByHand(runner_of(tmp_path)).answers(prompts()[-1:], NEW)
    with torch.inference_mode():
        logits = precise(model)(input_ids=torch.tensor([said.text])).logits[0, LENGTHS[-1] - 1 : -1].log_softmax(-1)
    assert said.text[LENGTHS[-1] :] == logits.argmax(-1).tolist()
    assert said.logprobs == pytest.approx(logits.max(-1).values.tolist(), abs=CLOSE)


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HYBRID)
def test_no_cut_and_no_neighbour_shows(
    name: str, dtype: str, folders: Callable[[str], tuple[Path, PreTrainedModel]]
) -> None:
    folder, _ = folders(name)
    runner = runner_of(folder, dtype=dtype, num_blocks=200, state_slots=90)
    hand = ByHand(runner)
    expected = hand.answers(prompts(), NEW)
    for piece in (1, 2, 3, 16, 37):
        assert_same(hand.answers(prompts(), NEW, piece), expected)
    for prompt, said in zip(prompts(), expected, strict=True):
        assert_same(hand.answers([prompt], NEW), [said])


@pytest.mark.full(but=4)
@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("name", DENSE)
def test_weights_of_codes_are_cut_as_well(
    name: str, quantization: str, folders: Callable[[str], tuple[Path, PreTrainedModel]]
) -> None:
    folder, _ = folders(name)
    hand = ByHand(runner_of(folder, dtype="bfloat16", quantization=quantization, num_blocks=99, state_slots=50))
    expected = hand.answers(prompts(), NEW)
    assert_same(hand.answers(prompts(), NEW, 3), expected)


@pytest.mark.full(but=4)
@pytest.mark.parametrize("name", [name for name in HYBRID if not name.startswith("olmo")])
def test_two_ranks_share_states(name: str, folders: Callable[[str], tuple[Path, PreTrainedModel]]) -> None:
    folder, _ = folders(name)
    expected = ByHand(runner_of(folder)).answers(prompts(), NEW)
    ranks = forked_ranks(options := options_of(folder, tensor_parallel=2))
    try:
        hand = ByHand(load_runner(options, ranks))
        found = hand.answers(prompts(), NEW)
        assert_same(hand.answers(prompts(), NEW, 5), found)
    finally:
        ranks.close()
    for one, other in zip(found, expected, strict=True):
        assert one.text == other.text
        assert one.logprobs == pytest.approx(other.logprobs, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "ranks", "reason"),
    [
        ("qwen3_5", 4, "2 key heads of recurrent layers"),
        ("bamba", 4, "2 groups of a gated norm"),
        ("lfm2", 3, "64 channels of a convolution"),
        ("falcon_h1", 8, "8 ranks"),
    ],
)
def test_what_ranks_cannot_share_is_named(
    name: str, ranks: int, reason: str, folders: Callable[[str], tuple[Path, PreTrainedModel]]
) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        choose(options_of(folders(name)[0], tensor_parallel=ranks))


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        (
            "qwen3_5",
            "bfloat16",
            "recurrent layers with keys and values of 8 and .*, and not 128 and 128 or 96 and 192.*give --device cpu",
        ),
        ("bamba", "bfloat16", "recurrent layers with states of 12 rows, and not 128"),
        ("lfm2-adjusted", "bfloat16", "convolutions of 5 taps, and not 2 to 4"),
        ("qwen3_next", "float32", "experts, which a GPU computes in 16 bits alone; give --dtype bfloat16"),
    ],
)
def test_what_no_kernel_takes_is_refused_by_name(
    name: str,
    dtype: str,
    reason: str,
    folders: Callable[[str], tuple[Path, PreTrainedModel]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_a_gpu(monkeypatch, frozenset(Feature))
    with pytest.raises(UnsupportedModel, match=reason):
        choose(options_of(folders(name)[0], dtype=dtype))


def test_a_gpu_without_kernels_is_refused_by_name(
    folders: Callable[[str], tuple[Path, PreTrainedModel]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch, frozenset(Feature) - {Feature.RECURRENT})
    with pytest.raises(UnsupportedModel, match=r"'lfm2' has recurrent.* a Hopper GPU.* not an A100 wi"):
        choose(options_of(folders("lfm2")[0]))
    on_a_gpu(monkeypatch, frozenset(Feature))
    assert choose(options_of(folders("lfm2")[0])).described is not None


def test_experts_without_a_gate_have_one_activation_on_a_gpu(
    folders: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = json.loads((folders("nemotron_h-experts")[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stated, "mlp_hidden_act": "gelu"}))
    on_a_gpu(monkeypatch, frozenset(Feature))
    with pytest.raises(UnsupportedModel, match="square of relu alone, not gelu; give --device cpu"):
        choose(options_of(tmp_path, dtype="bfloat16"))
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(UnsupportedModel, match="recurrent layers with states of"):
        choose(options_of(tmp_path, dtype="bfloat16"))


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, found: frozenset[Feature]) -> None:
    monkeypatch.setattr("octavo_worker.assembly.choices.choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an A100")
    for module in ("choices", "devices"):
        monkeypatch.setattr(f"octavo_worker.assembly.{module}.features", lambda device: found)


@pytest.mark.parametrize("name", DENSE)
def test_the_doctor_counts_what_a_step_reads(name: str, folders: Callable[[str], tuple[Path, PreTrainedModel]]) -> None:
    """Gates that lie between queries once, and all products of a layer."""
    folder, _ = folders(name)
    model = runner_of(folder).model
    assert isinstance(model, Decoder)
    read = sum(product.nbytes for product in inspect(options_of(folder)).products)
    assert read == sum(linear.nbytes for linear in model.layers.linears)
