"""Weights that come in pieces through pinned memory are those that safetensors reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo_worker.model.checkpoint import streamed
from octavo_worker.model.checkpoint.header import read_header
from octavo_worker.model.checkpoint.source import Checkpoint, Cut
from octavo_worker.model.checkpoint.streamed import Piece, StreamedCheckpoint, loads_of, pieces_of
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


def test_a_file_that_was_cut_off_is_refused_before_anything_is_read(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    file = tmp_path / "one.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"one\.safetensors ends before its tensor '[ab]' does; download"):
        Checkpoint.open(tmp_path)


def test_a_tensor_of_another_size_than_its_shape_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "I32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    file = tmp_path / "bad.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match="gives its tensor 'a' another size than its shape"):
        read_header(file)


def test_an_index_that_names_another_file_is_refused(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    files = {"a": "two.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(CheckpointError, match=r"names 'a' in two\.safetensors, which has no such tensor"):
        Checkpoint.open(tmp_path)


def test_numbers_are_not_made_of_codes(tmp_path: Path) -> None:
    save_file({"codes": torch.ones(3, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="'codes' is stored as I32, but BF16 belongs there"):
        Checkpoint.open(tmp_path).read("codes", torch.zeros(3, dtype=torch.bfloat16))


SIZES = [10, 20, 20, 30, 60, 20, 20, 20]
CUTS = [
    Cut((300, 70), [range(300)], range(70)),
    Cut((300, 70), [range(20, 110), range(200, 201)], range(70)),
    Cut((300, 70), [range(300)], range(35, 70)),
    Cut((300, 70), [range(150, 300), range(3)], range(8, 9)),
]


@pytest.mark.parametrize("size", [64, 1000, 1 << 20])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_pieces_are_those_of_a_cut(tmp_path: Path, tensors: dict[str, torch.Tensor], cut: Cut, size: int) -> None:
    file = tmp_path / "one.safetensors"
    target = torch.zeros(cut.held, dtype=torch.bfloat16)
    for part in pieces_of(0, read_header(file)["a"], target, cut, size):
        read = file.read_bytes()[part.begin : part.begin + part.size]
        assert part.size <= max(size, 140), "a row at least"
        part.take(torch.frombuffer(bytearray(read), dtype=torch.uint8))
    assert torch.equal(target, cut.of(tensors["a"]))


def test_small_pieces_are_loaded_together() -> None:
    pieces = [Piece(0, 100 * number, torch.zeros(size, dtype=torch.uint8)) for number, size in enumerate(SIZES)]
    loads = list(loads_of(pieces, 50))
    assert [piece for load in loads for piece in load] == pieces
    assert [[piece.size for piece in load] for load in loads] == [[10, 20, 20], [30], [60], [20, 20], [20]]


@pytest.mark.gpu
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_cuts_arrive(
    tmp_path: Path, tensors: dict[str, torch.Tensor], cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "PIECE", 1000)
    checkpoint = StreamedCheckpoint.open(tmp_path)
    torch.cuda._sleep(100_000_000)
    target = torch.zeros(cut.held, dtype=torch.bfloat16, device="cuda")
    checkpoint.read("a", target, cut=cut)
    checkpoint.finish(lambda name: name in "bc")
    assert torch.equal(target.cpu(), cut.of(tensors["a"]))


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
    checkpoint.finish(lambda name: False)
    assert torch.equal(fused[4:304].cpu(), tensors["a"])
    assert not fused[:4].any()
    assert not fused[304:].any()
    assert torch.equal(vector.cpu(), tensors["b"])
    assert torch.equal(converted.cpu(), tensors["c"].T.bfloat16())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.int32, torch.int8, torch.uint8, torch.float8_e4m3fn, torch.int64])
def test_codes_are_there_after_a_wait(tmp_path: Path, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "PIECE", 1000)
    monkeypatch.setattr(streamed, "LEAST", 100)
    drawn = [torch.randint(-100, 100, (70, 90)).to(kind) for _ in range(3)]
    save_file({str(index): tensor for index, tensor in enumerate(drawn)}, tmp_path / "model.safetensors")
    checkpoint = StreamedCheckpoint.open(tmp_path)
    for index, tensor in enumerate(drawn):
        target = torch.empty(70, 90, dtype=kind, device="cuda")
        checkpoint.read(str(index), target)
        checkpoint.wait()
        assert torch.equal(target.cpu().view(torch.uint8), tensor.view(torch.uint8))
    checkpoint.finish(lambda name: False)


@pytest.mark.gpu
def test_what_is_missing_or_misshapen_is_named(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    checkpoint = StreamedCheckpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match="'z' is missing"):
        checkpoint.read("z", torch.zeros(3, device="cuda"))
    with pytest.raises(CheckpointError, match="'a' has shape"):
        checkpoint.read("a", torch.zeros((70, 300), dtype=torch.bfloat16, device="cuda"))
