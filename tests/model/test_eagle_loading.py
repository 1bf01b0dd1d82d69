"""An EAGLE-3 head is loaded beside its target, or refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_heads import head_values, random_head, random_tensors, write_head
from transformers import LlamaConfig, MistralConfig, PhiConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from octavo_worker.assembly.choices import described_by
from octavo_worker.assembly.guessers import load_guesser
from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import UNKNOWN, SampleSpec, SequenceStep, StepPlan
from octavo_worker.model import ModelError, UnsupportedModel
from octavo_worker.model.eagle.config import head_config
from octavo_worker.model.families import FAMILIES
from octavo_worker.runner.paged import PagedRunner

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LAYER_BYTES = 2 * 2 * 8 * 16 * 4  # K and V, KV heads, head size, tokens, float32
FEATURE_BYTES = 32 * 16 * 4


def folder_of(path: Path, kind: type[PreTrainedConfig] = LlamaConfig, **differences: object) -> Path:
    kind(**{**SIZES, **differences}).save_pretrained(path)
    return path


def load(target: Path, head: Path | str, **options: Any) -> PagedRunner:
    fixed = {"load_format": "dummy", "dtype": "float32", "threads": 1, "device": "cpu", "num_blocks": 40}
    runner = load_runner(ModelOptions(model=str(target), speculate=f"eagle:{head}", **fixed | options))
    assert isinstance(runner, PagedRunner)
    return runner


def described(target: PreTrainedConfig | None = None, **differences: Any) -> Any:
    """A head's config.json as it is read beside a target."""
    ours = described_by(target or LlamaConfig(**SIZES), None)
    values = head_values(SIZES, **differences)
    named = {name: value for name, value in values.items() if name != "architectures"}
    assert ours is not None
    return head_config(values, described_by(LlamaConfig(**named), None), ours)


def decode(prompt: list[int], said: list[int], wanted: int, table: list[int]) -> SequenceStep:
    spec = SampleSpec(EngineSampling(seed=1, max_tokens=9), 0, prompt, said)
    rows = tuple(range(1 + wanted))
    return SequenceStep((said[-1], *(UNKNOWN,) * wanted), len(prompt) + len(said) - 1, table, (spec,) * len(rows), rows)


@pytest.mark.parametrize(
    ("layers", "differences", "taps"),
    [
        (32, {}, (2, 16, 29)),
        (8, {}, (2, 4, 5)),
        (3, {}, (0, 1, 2)),
        (32, {"eagle_aux_hidden_state_layer_ids": [2, 18, 30]}, (2, 18, 30)),
        (32, {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}, (2, 16, 29)),
        (32, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}}, (2, 16, 29)),
        (32, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [24, 30]}}, (24, 30)),
        (32, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": None}}, (2, 16, 29)),
    ],
)
def test_layers_are_counted_as_the_file_does(layers: int, differences: dict[str, Any], taps: tuple[int, ...]) -> None:
    assert described(LlamaConfig(**SIZES | {"num_hidden_layers": layers}), **differences).taps == taps


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        ({"architectures": ["Eagle3Speculator"]}, "architecture Eagle3Speculator; EAGLE-3 heads are LlamaForCausalLME"),
        ({"architectures": []}, "architecture none"),
        ({"hidden_size": 64}, "its hidden size is 64, the target's 32; give the head of this target"),
        ({"vocab_size": 51}, "its vocabulary has 51 tokens, the target's 50; give the head of this target"),
        ({"draft_vocab_size": 60}, "draft_vocab_size 60 is no part of 50 tokens"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "the target's last state alone, as EAGLE-1 does"),
        ({"norm_before_residual": True}, "its norm_before_residual is true, which is not computed here"),
        ({"eagle_config": {"norm_before_fc": True}}, "its norm_before_fc is true"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 7]}, "the states at layers 2, 3, 7, which a target of 7 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 2, 4]}, "the states at layers 2, 2, 4"),
    ],
)
def test_what_is_no_head_of_this_target_is_refused(differences: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        described(**differences)


def changed(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A head's tensors, with one thing wrong."""
    match name:
        case "no fc":
            del tensors["fc.weight"]
        case "of two states":
            tensors["fc.weight"] = tensors["fc.weight"][:, :64]
        case "of four states":
            tensors["fc.weight"] = torch.zeros(32, 128)
        case "a model":
            del tensors["fc.weight"]
            tensors["model.norm.weight"] = torch.ones(32)
        case "one more":
            tensors["layers.1.hidden_norm.weight"] = torch.ones(32)
        case "no ids":
            del tensors["d2t"]
        case "ids beyond":
            tensors["d2t"] += 40
        case "ids twice":
            tensors["d2t"] = -torch.arange(20)
        case "of another vocabulary":
            tensors["t2d"] = torch.zeros(60, dtype=torch.bool)
    return tensors


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no fc", r"--speculate eagle:.*/head: tensor 'fc\.weight' is missing"),
        ("of two states", "its fc joins an embedding and one state, as in EAGLE-1 and 2; give a head of EAGLE-3"),
        ("of four states", r"tensor 'fc\.weight' has shape \(32, 128\), but config\.json says \(32, 96\)"),
        ("a model", "this is a whole model, not a head; give it as draft:FOLDER"),
        ("one more", r"no place for: layers\.1\.hidden_norm\.weight"),
        ("no ids", "tensor 'd2t' is missing"),
        ("ids beyond", "d2t does not lead to 20 different ones of the target's 50 tokens"),
        ("ids twice", "d2t does not lead to 20 different ones"),
        ("of another vocabulary", "t2d is of 60 tokens, but the target has 50"),
    ],
)
def test_tensors_that_do_not_fit_are_named(name: str, reason: str, tmp_path: Path) -> None:
    target, values = folder_of(tmp_path / "a"), head_values(SIZES, draft_vocab_size=20)
    head = write_head(tmp_path / "head", values, changed(name, random_tensors(values)))
    with pytest.raises(ModelError, match=reason):
        load_head_alone(target, head)


def load_head_alone(target: Path, head: Path) -> None:
    """With random weights of the target."""
    dummy = ModelOptions(model=str(target), load_format="dummy", dtype="float32", threads=1, device="cpu")
    real = ModelOptions(
        model=str(target), dtype="float32", threads=1, device="cpu", speculate=f"eagle:{head}", max_running=4
    )
    load_guesser(real, load_model(dummy)[0], 64)


def test_both_have_room_in_the_cache(tmp_path: Path) -> None:
    target = folder_of(tmp_path / "a")
    head = random_head(tmp_path / "b", target)
    block = 8 * LAYER_BYTES + FEATURE_BYTES
    options = {"num_blocks": None, "kv_cache_bytes": 20 * block, "host_cache_bytes": 10 * block}
    runner = load(target, head, **options)
    assert (runner.num_blocks, runner.num_host_blocks) == (20, 11)


def test_random_weights_do_for_a_head_as_for_a_model(tmp_path: Path) -> None:
    target = folder_of(tmp_path / "a")
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps(head_values(SIZES, draft_vocab_size=20)))
    runner = load(target, head)
    assert runner.step_seconds is not None
    assert runner.step_seconds.drafting


@pytest.mark.parametrize("way", ["copies", "swap_out"])
def test_features_go_where_the_target_moves_them(way: str, tmp_path: Path) -> None:
    """Features of blocks in which the head has computed nothing, too."""
    target = folder_of(tmp_path / "a")
    head = random_head(tmp_path / "b", target)
    runner = load(target, head, host_cache_bytes=1 << 20)
    prompt, said = [7, 30, 2, 41, 9] * 5, [5, 6]
    runner.launch(StepPlan([SequenceStep([*prompt, said[0]], 0, [1, 2])], 0)).result()
    host = runner.first_host_block + 1
    if way == "copies":
        moves = [{"copies": [(1, 8), (2, 9)]}]
    else:
        moves = [{"swap_out": [(1, host), (2, host + 1)]}, {"swap_in": [(host, 8), (host + 1, 9)]}]
    for move in moves:
        runner.launch(StepPlan([], 0, **move)).result()
    drafts = []
    for table in ([1, 2], [8, 9]):
        (result,) = runner.launch(StepPlan([decode(prompt, said, 4, table)], 1)).result().sequences
        drafts.append(list(result.drafts))
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) == 4


def test_a_budget_of_one_token_computes_what_it_can(tmp_path: Path) -> None:
    target = folder_of(tmp_path / "a")
    runner = load(target, random_head(tmp_path / "b", target), token_budget=1)
    runner.launch(StepPlan([SequenceStep([7], 0, [1])], 0)).result()
    lengths = []
    for _ in range(2):
        (result,) = runner.launch(StepPlan([decode([7], [9], 2, [1])], 1)).result().sequences
        lengths.append(len(result.drafts))
    assert lengths == [0, 2]


@pytest.mark.parametrize(
    ("kind", "differences", "reason"),
    [
        (MistralConfig, {"sliding_window": 24}, "this model keeps the 24 tokens of its sliding window; give suffix"),
        (PhiConfig, {}, "this model runs on its transformers code; give suffix or draft:FOLDER"),
    ],
)
def test_targets_whose_states_no_head_can_read_are_refused(
    kind: type[PreTrainedConfig], differences: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    head = random_head(tmp_path / "b", folder_of(tmp_path / "a"))
    with pytest.raises(UnsupportedModel, match=rf"--speculate eagle:.*: .*{reason}"):
        load(folder_of(tmp_path / "c", kind, **differences), head)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("./no-such-folder", r"--speculate eagle:\./no-such-folder: no folder \./no-such-folder"),
        ("{pickled}", r"holds pickled weights \(\.bin\).*torch\.load"),
        ("{quantised}", "the head is quantised; give it in 16 bits"),
        ("{other}", "other cannot guess for demo: their vocabularies differ, as in the id of 'the'"),
    ],
)
def test_what_cannot_guess_is_refused_with_the_reason(head: str, reason: str, tmp_path: Path) -> None:
    demo, folders = model_folder("demo"), {name: tmp_path / name for name in ("pickled", "quantised", "other")}
    for folder in folders.values():
        random_head(folder, demo)
    (folders["pickled"] / "model.safetensors").rename(folders["pickled"] / "pytorch_model.bin")
    config = folders["quantised"] / "config.json"
    stated = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": stated}))
    shutil.copy(demo / "tokenizer.json", folders["other"])
    tokenizer = folders["other"] / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"the"', '"theirs"'))
    with pytest.raises(ModelError, match=reason):
        load(demo, head.format(**folders), load_format="auto")


def test_layers_for_several_tokens_are_known_by_name() -> None:
    """Or their tensors would be surplus: configs of such families name those layers."""
    names = ("mtp", "nextn", "num_nextn_predict_layers", "mtp_num_hidden_layers")
    with_such = [
        family
        for family in FAMILIES
        if any(any(name in field.lower() for name in names) for field in vars(CONFIG_MAPPING[family]()))
    ]
    assert sorted(with_such) == ["deepseek_v3", "glm4_moe", "mellum", "nemotron_h", "sarvam_moe"]
