"""Models that the transformers route cannot serve are refused in words, with a next step, whatever their code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BartConfig,
    MptConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
    XmodConfig,
)

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model import UnsupportedModel, transformers_route
from octavo_worker.model.trial import tried

TEXT_DECODER: dict[str, Any] = {"is_encoder_decoder": False, "is_decoder": True}
REFUSED: dict[str, tuple[PreTrainedConfig, str]] = {
    "no mask to read": (MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=50, max_seq_len=64), "AttributeError"),
    "a language to set": (
        XmodConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
            max_position_embeddings=64, is_decoder=True,
        ),
        "Input language unknown",
    ),
    "positions of its own": (
        BartConfig(
            vocab_size=50, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=40,
            encoder_layers=2, max_position_embeddings=64, **TEXT_DECODER,
        ),
        "counts positions by itself",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_it_says_why_and_what_next(tmp_path: Path, why: str) -> None:
    config, says = REFUSED[why]
    config.save_pretrained(tmp_path)
    options = ModelOptions(model=str(tmp_path), load_format="dummy", device="cpu", num_blocks=9, max_model_len=32)
    with pytest.raises(UnsupportedModel, match=says) as refused:
        load_runner(options)
    assert "serve another model" in str(refused.value)


def test_a_config_that_lacks_what_its_family_needs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_attention_heads": "four"}')
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        load_runner(ModelOptions(model=str(tmp_path), load_format="dummy", device="cpu"))


def test_random_weights_are_drawn_on_their_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a mixture's experts took minutes on a CPU."""
    Qwen3MoeConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
    ).save_pretrained(tmp_path)  # fmt: skip
    config = AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    trial = tried(config, torch.bfloat16)
    made: list[torch.device] = []

    def draw(*args: Any, **ways: Any) -> Any:
        model = original(*args, **ways)
        made.extend({parameter.device for parameter in model.parameters()})
        return model

    original = AutoModelForCausalLM.from_config
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", draw)
    monkeypatch.setattr(transformers_route, "TransformersModel", lambda model, _: model)
    transformers_route.load_transformers(tmp_path, config, trial, torch.bfloat16, torch.device("meta"), 0)
    assert made == [torch.device("meta")]
