"""Options become a runner of the right size, or an error that says what to do."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import BloomConfig, LlamaConfig, MambaConfig, MistralConfig, PreTrainedConfig, T5Config

from octavo_kernels import cuda
from octavo_worker.assembly.choices import choose_dtype
from octavo_worker.assembly.devices import choose_device
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model import ModelError, UnsupportedModel

BLOCK_BYTES = 2 * 2 * 2 * 8 * 16 * 4  # K and V, layers, KV heads, head size, tokens, float32


def folder_of(tmp_path: Path, kind: type[PreTrainedConfig] = LlamaConfig, **differences: object) -> str:
    config = kind(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        **differences,
    )
    return saved(tmp_path, config)


def saved(tmp_path: Path, config: PreTrainedConfig) -> str:
    config.save_pretrained(tmp_path)
    return str(tmp_path)


def dummy(model: str, **options: object) -> ModelOptions:
    return ModelOptions(model=model, load_format="dummy", dtype="float32", threads=1, **options)  # type: ignore[arg-type]


def test_pool_has_the_blocks_asked_for(tmp_path: Path) -> None:
    runner = load_runner(dummy(folder_of(tmp_path), num_blocks=30))
    assert (runner.num_blocks, runner.block_size, runner.vocab_size) == (30, 16, 50)
    assert runner.max_model_len == 256


def test_pool_fits_the_bytes_asked_for(tmp_path: Path) -> None:
    runner = load_runner(dummy(folder_of(tmp_path), kv_cache_bytes=20 * BLOCK_BYTES + 1))
    assert runner.num_blocks == 20


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_cache_in_8_bits_has_more_blocks_of_fewer_bytes(tmp_path: Path, kv_dtype: str) -> None:
    eight_bits = 2 * 2 * 2 * (8 + 4) * 16  # a byte a value and a float32 scale a token
    options = {"kv_cache_bytes": 20 * BLOCK_BYTES, "host_cache_bytes": 4 * BLOCK_BYTES}
    runner = load_runner(dummy(folder_of(tmp_path), kv_dtype=kv_dtype, **options))
    assert (runner.num_blocks, runner.num_host_blocks) == (
        20 * BLOCK_BYTES // eight_bits,
        4 * BLOCK_BYTES // eight_bits + 1,
    )
    assert runner.kv_cache[0].nbytes == eight_bits
    assert runner.speeds is not None
    assert runner.speeds.block_bytes == eight_bits


def test_a_cache_is_of_the_models_type_unless_asked_otherwise(tmp_path: Path) -> None:
    assert load_runner(dummy(folder_of(tmp_path), num_blocks=5)).kv_dtype == "float32"
    assert load_runner(dummy(folder_of(tmp_path), num_blocks=5, kv_dtype="int8")).kv_dtype == "int8"


def test_pool_is_never_larger_than_can_be_used(tmp_path: Path) -> None:
    runner = load_runner(dummy(folder_of(tmp_path), max_running=3, token_budget=64))
    assert runner.num_blocks == 3 * 16 + 1


def test_context_is_clamped_to_the_pool_and_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        runner = load_runner(dummy(folder_of(tmp_path), num_blocks=5))
    assert runner.max_model_len == 64
    assert "clamped from 256 to 64" in caplog.text


def test_long_sequences_may_fill_the_host_as_well(tmp_path: Path) -> None:
    runner = load_runner(dummy(folder_of(tmp_path), num_blocks=5, host_cache_bytes=1 << 14))
    assert runner.num_host_blocks - 1 == (1 << 14) // runner.kv_cache[0].nbytes
    assert runner.max_model_len == (2 + runner.num_host_blocks - 1) * 16


def test_context_is_not_clamped_where_every_layer_slides(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, MistralConfig, sliding_window=40)
    runner = load_runner(dummy(folder, num_blocks=5))
    assert (runner.window, runner.max_model_len) == (40, 256)
    roomy = load_runner(dummy(folder, max_running=3, token_budget=64))
    assert roomy.num_blocks == 3 * 7 + 1, "more than three windows and chunks are of no use"


def test_context_longer_than_the_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="context of 256"):
        load_runner(dummy(folder_of(tmp_path), max_model_len=257))


def test_a_pool_without_a_usable_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="2 are the least"):
        load_runner(dummy(folder_of(tmp_path), kv_cache_bytes=100))


@pytest.mark.parametrize("block_size", [1, 12, 40])
def test_a_block_size_that_no_cache_has_is_refused(tmp_path: Path, block_size: int) -> None:
    with pytest.raises(ModelError, match=f"--block-size {block_size}: .*4, 8 or a multiple of 16"):
        load_runner(dummy(folder_of(tmp_path), num_blocks=5, block_size=block_size))


def test_dtype_follows_the_config(tmp_path: Path) -> None:
    assert choose_dtype("auto", LlamaConfig(dtype="bfloat16")) is torch.bfloat16
    assert choose_dtype("auto", LlamaConfig()) is torch.float32
    assert choose_dtype("float16", LlamaConfig(dtype="bfloat16")) is torch.float16


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_architecture"}')
    with pytest.raises(UnsupportedModel, match="no_such_architecture"):
        load_runner(dummy(str(tmp_path)))


TINY = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (T5Config(d_model=32, d_ff=40, num_layers=2, num_heads=4, vocab_size=50), "encoder-decoder"),
        (MambaConfig(**TINY, state_size=4), "selective scan of Mamba1"),
        (BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4), "Bloom"),
    ],
    ids=["encoder-decoder", "state-space", "own-attention"],
)
def test_models_without_paged_attention_are_refused(tmp_path: Path, config: PreTrainedConfig, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        load_runner(dummy(saved(tmp_path, config), max_model_len=32))


def test_a_host_pool_has_the_blocks_that_fit_and_measured_speeds(tmp_path: Path) -> None:
    runner = load_runner(dummy(folder_of(tmp_path), num_blocks=30, host_cache_bytes=10 * BLOCK_BYTES + 5))
    assert runner.num_host_blocks == 11  # block 0 is never used
    assert runner.speeds is not None
    assert runner.speeds.block_bytes == BLOCK_BYTES
    assert runner.speeds.link > 0
    assert runner.speeds.prefill > 0


def test_without_a_host_pool_nothing_is_measured(tmp_path: Path) -> None:
    runner = load_runner(dummy(folder_of(tmp_path), num_blocks=30))
    assert (runner.num_host_blocks, runner.speeds) == (0, None)


def test_a_host_pool_without_room_for_a_block_is_none(tmp_path: Path) -> None:
    assert load_runner(dummy(folder_of(tmp_path), num_blocks=30, host_cache_bytes=BLOCK_BYTES - 1)).num_host_blocks == 0


@pytest.mark.parametrize(
    ("sees", "built", "auto"), [(True, True, "cuda"), (True, False, "cpu"), (False, True, "cpu"), (False, False, "cpu")]
)
def test_auto_takes_a_gpu_that_torch_and_the_kernels_can_use(
    sees: bool, built: bool, auto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also AMD's: its GPUs are torch's "cuda", and a module that was built for others is none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees)
    monkeypatch.setattr(cuda, "compiled", SimpleNamespace() if built else None)
    assert choose_device("auto").type == auto
    assert choose_device("cpu").type == "cpu"
    if auto == "cuda":
        assert choose_device("cuda").type == "cuda"
    else:
        with pytest.raises(ModelError, match="not built for this GPU" if sees else "torch sees no GPU"):
            choose_device("cuda")
