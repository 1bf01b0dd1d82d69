"""Weights that come in pieces through pinned memory are those that safetensors reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo_worker.model.checkpoint import streamed
from octavo_worker.model.checkpoint.header import read_header
from octavo_worker.model.checkpoint.streamed import StreamedCheckpoint
from octavo_worker.model.errors import CheckpointError


@pytest.fixture
def tensors(tmp_path: Path) -> dict[str, torch.Tensor]:
    """Two files, of which one is an index away."""
    generator = torch.Generator().manual_seed(1)
    made = {
        "a": torch.randn(300, 70, generator=generator).bfloat16(),
        "b": torch.randn(5, generator=generator),
        "c": torch.randn(7, 9, generator=generator).half(),
    }
    save_file({name: made[name] for name in "ab"}, tmp_path / "one.safetensors", metadata={"format": "pt"})
    save_file({"c": made["c"]}, tmp_path / "two.safetensors")
    files = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return made


def test_the_header_says_where_tensors_lie(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    file = tmp_path / "one.safetensors"
    places = read_header(file)
    assert set(places) == {"a", "b"}
    for name, place in places.items():
        data = bytearray(file.read_bytes()[place.begin : place.end])
        assert torch.equal(torch.frombuffer(data, dtype=place.dtype).view(place.shape), tensors[name])


@pytest.mark.parametrize("content", [b"", b"x" * 30, (5).to_bytes(8, "little") + b"[1,2]"])
def test_what_is_not_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_header(file)


@pytest.mark.gpu
def test_pieces_arrive_where_they_belong(
    tmp_path: Path, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "PIECE", 1000)
    checkpoint = StreamedCheckpoint.open(tmp_path)
    torch.cuda._sleep(100_000_000)  # the zeros are not there yet when the pieces come
    fused = torch.zeros(310, 70, dtype=torch.bfloat16, device="cuda")
    converted = torch.zeros(9, 7, dtype=torch.bfloat16, device="cuda")
    vector = torch.zeros(5, device="cuda")
    checkpoint.read("a", fused[4:304])
    checkpoint.read("b", vector)
    checkpoint.read("c", converted, transposed=True)
    checkpoint.finish(())
    assert torch.equal(fused[4:304].cpu(), tensors["a"])
    assert not fused[:4].any()
    assert not fused[304:].any()
    assert torch.equal(vector.cpu(), tensors["b"])
    assert torch.equal(converted.cpu(), tensors["c"].T.bfloat16())


@pytest.mark.gpu
def test_what_is_missing_or_misshapen_is_named(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    checkpoint = StreamedCheckpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match="'z' is missing"):
        checkpoint.read("z", torch.zeros(3, device="cuda"))
    with pytest.raises(CheckpointError, match="'a' has shape"):
        checkpoint.read("a", torch.zeros((70, 300), dtype=torch.bfloat16, device="cuda"))
