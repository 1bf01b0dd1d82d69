"""Which layers compute prompts by chunks, and the room for these: what a GPU is given, told by a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recurrent_layers import Part, moves_of

from octavo_kernels import ops
from octavo_kernels.ops import LayerStates, delta_tiles, room_bytes, ssm_tiles
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.checkpoint import recurrent
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.layers.recurrent.branches import BranchMixer
from octavo_worker.model.layers.recurrent.delta import DeltaMixer
from octavo_worker.model.layers.recurrent.ssm import SsmMixer
from octavo_worker.runner.cuda.memory import chunk_bytes

from .hybrid_wide import WIDE

TILES = {
    "qwen3_5": delta_tiles(2, 4), "mamba2": ssm_tiles(1, 4, 128, 64), "granitemoehybrid": ssm_tiles(2, 4, 128, 64),
    "falcon_h1-rows": ssm_tiles(1, 4, 256, 64),
}  # fmt: skip


def loaded(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, takes: bool = True) -> Decoder:
    """The model as a device that `takes` chunks has it."""
    monkeypatch.setattr(recurrent, "takes_chunks", lambda *_: takes)
    WIDE[name].save_pretrained(folder)
    options = ModelOptions(
        model=str(folder), device="cpu", dtype="float32", load_format="dummy", threads=1, max_model_len=64
    )
    model, _ = load_model(options)
    assert isinstance(model, Decoder)
    return model


@pytest.mark.parametrize("name", TILES)
def test_room_is_set_aside_for_the_chunks_of_a_whole_step(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    model = loaded(name, tmp_path, monkeypatch)
    assert model.has_chunks
    assert chunk_bytes(model, 3) == room_bytes(TILES[name], len(model.buffers.hidden), 3)


@pytest.mark.parametrize("name", TILES)
def test_without_chunks_there_is_no_room_for_any(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    model = loaded(name, tmp_path, monkeypatch, takes=False)
    assert not model.has_chunks
    assert chunk_bytes(model, 3) == 0


def test_heads_without_kernels_for_chunks_have_no_room_for_any(tmp_path: Path, monkeypatch: Any) -> None:
    model = loaded("olmo_hybrid", tmp_path, monkeypatch)
    assert not model.has_chunks
    assert chunk_bytes(model, 3) == 0


@pytest.mark.parametrize("name", TILES)
def test_only_steps_with_prompts_ask_for_chunks(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    asked: list[bool] = []
    for step in ("delta_step", "ssm_step"):
        monkeypatch.setattr(ops, step, lambda *_, chunked, **__: asked.append(chunked))
    mixers = [block.attention for block in loaded(name, tmp_path, monkeypatch).layers.blocks]
    mixers = [mixer.recurrent if isinstance(mixer, BranchMixer) else mixer for mixer in mixers]
    mixer = next(mixer for mixer in mixers if isinstance(mixer, DeltaMixer | SsmMixer))
    rows, none = torch.zeros(1, sum(segment.size for segment in mixer.layer.segments)), None
    for prompts in (True, False):
        mixer.advance(rows, LayerStates(none, rows), moves_of([Part(1)]), prompts)
    assert asked == [True, False]
