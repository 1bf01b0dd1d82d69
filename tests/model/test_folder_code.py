"""A model's folder is data: no module and no pickle in it runs, and no question offers to run one."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3Config, LlamaConfig, PreTrainedConfig, StableLmConfig
from transformers.utils import logging

from octavo_worker.assembly.inspection import inspect
from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model import CheckpointError, ModelError, UnsupportedModel, library

CLASSES = {
    name: f"harmful.{name}"
    for name in ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer", "AutoProcessor")
}
STABLELM = StableLmConfig(
    vocab_size=50, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
)  # fmt: skip
LLAMA = LlamaConfig(
    vocab_size=50, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
)  # fmt: skip
GEMMA = Gemma3Config(
    text_config={
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    },
    vision_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that each of the folder's codes would write. Every question is answered with yes."""

    def agree(question: str = "") -> str:
        (tmp_path / "asked").write_text(question)
        return "y"

    monkeypatch.setattr("builtins.input", agree)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    return tmp_path / "ran"


class Harm:
    """A value whose pickle writes a file when it is read."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self._trace, "x")


def harmful(folder: Path, config: dict[str, Any], trace: Path, *, depth: str = "") -> Path:
    """`folder` with code under all names that transformers looks for, which `config` or that at `depth` in it names."""
    code = f"from pathlib import Path\nPath({str(trace)!r}).write_text('x')\n"
    for name in ("harmful.py", "custom_generate/generate.py", "torch.py", "configuration_llama.py"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(code)
    (folder / "custom_generate" / "requirements.txt").write_text("")
    (config[depth] if depth else config)["auto_map"] = dict(CLASSES)
    (folder / "config.json").write_text(json.dumps(config))
    beside = {"auto_map": dict(CLASSES), "tokenizer_class": "HarmfulTokenizer", "custom_generate": "harmful.py"}
    for name in ("tokenizer_config.json", "generation_config.json", "processor_config.json"):
        (folder / name).write_text(json.dumps(beside))
    return folder


def options(folder: Path, **others: Any) -> ModelOptions:
    return ModelOptions(model=str(folder), device="cpu", num_blocks=9, max_model_len=32, threads=1, **others)


def untouched(trace: Path) -> bool:
    return not trace.exists() and not trace.with_name("asked").exists()


@pytest.mark.parametrize("look", [inspect, load_runner])
@pytest.mark.parametrize("reference", ["harmful.AutoConfig", "someone/harmful--harmful.AutoConfig"])
def test_a_family_that_only_the_folder_knows_is_refused_in_words(
    tmp_path: Path, trace: Path, look: Any, reference: str
) -> None:
    folder = harmful(tmp_path / "model", {"model_type": "harmful"}, trace)
    stated = json.loads((folder / "config.json").read_text())
    stated["auto_map"]["AutoConfig"] = reference
    (folder / "config.json").write_text(json.dumps(stated))
    with pytest.raises(UnsupportedModel, match=r"never runs code of a folder.*Give a checkpoint in transformers' form"):
        look(options(folder))
    assert untouched(trace)


@pytest.mark.parametrize("config", [LLAMA, STABLELM], ids=lambda config: config.model_type)
def test_a_known_family_runs_on_the_librarys_class(tmp_path: Path, trace: Path, config: PreTrainedConfig) -> None:
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_config(config, trust_remote_code=False).save_pretrained(folder)
    harmful(folder, config.to_dict(), trace)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/harmful"}))
    assert load_runner(options(folder, dtype="float32")).vocab_size == 50
    assert untouched(trace)


def test_a_part_of_the_model_does_not_choose_its_code_either(tmp_path: Path, trace: Path) -> None:
    """transformers loads it by a call of its own, which asks if it has a config of that kind but no model."""
    stated = GEMMA.to_dict()
    stated["vision_config"] = {"model_type": "blip_vision_model", "_name_or_path": str(tmp_path / "model")}
    folder = harmful(tmp_path / "model", stated, trace, depth="vision_config")
    with pytest.raises(ModelError) as refused:
        load_model(options(folder, load_format="dummy"), decoders=False)
    assert "trust_remote_code" not in str(refused.value), "octavo has no such option"
    assert load_runner(options(folder, load_format="dummy")).vocab_size == GEMMA.text_config.vocab_size
    assert untouched(trace)


def test_no_call_of_transformers_own_asks(trace: Path) -> None:
    """One for a repository that a config names, for example."""
    with pytest.raises(ValueError, match="custom code"):
        library.dynamic.resolve_trust_remote_code(None, "someone/harmful", has_local_code=False, has_remote_code=True)
    assert untouched(trace)


@pytest.mark.parametrize("config", [LLAMA, STABLELM], ids=lambda config: config.model_type)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "adapter_model.bin", "model.safetensors", "index"])
def test_a_pickle_is_never_opened(tmp_path: Path, trace: Path, config: PreTrainedConfig, name: str) -> None:
    """By whichever name the folder, its index or its config offers it."""
    config.save_pretrained(tmp_path)
    pickled = pickle.dumps({"lm_head.weight": Harm(trace)})
    (tmp_path / (name if name != "index" else "pytorch_model.bin")).write_bytes(pickled)
    if name == "adapter_model.bin":
        stated = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(stated | {"transformers_weights": name}))
    if name == "index":
        index = {"weight_map": {"lm_head.weight": "pytorch_model.bin"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"pickled weights|no \.safetensors weights|not a safetensors file"):
        load_runner(options(tmp_path))
    assert untouched(trace)
