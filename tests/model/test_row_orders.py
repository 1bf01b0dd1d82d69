"""Rows of queries and keys whose neighbours are rotated together are put in order as they are read, in every form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from quantised_base import CONFIG
from torch import Tensor

from octavo_worker.contract.files import model_folder
from octavo_worker.model.checkpoint.formats import DenseFormat, Format, Matrix, OnlineFormat, Reader, format_of
from octavo_worker.model.checkpoint.formats.base import Held
from octavo_worker.model.checkpoint.source import Checkpoint
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.layers.norm import Input

DATA = Path(__file__).parent / "data" / "quantised"
FOLDERS = sorted(path.parent for path in DATA.glob("*/config.json"))
HEAD, HEADS, KV_HEADS = CONFIG["head_dim"], CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
PAIRS = [*range(0, 24, 2), *range(1, 24, 2), *range(24, 32)]  # the first 24 values of a head are rotated
AT = "model.layers.0.self_attn."


def computed(folder: Path, form: Format, matrix: Matrix, x: Tensor) -> Tensor:
    reader = Reader(Checkpoint.open(folder), torch.float32, torch.device("cpu"), Products())
    return form.linear(matrix, reader).apply(Input(x))


def places(heads: int, kv_heads: int) -> list[int]:
    """Where the columns of an ordered product are in one that is not."""
    turned = [HEAD * head + place for head in range(heads + kv_heads) for place in PAIRS]
    return [*turned, *range(len(turned), len(turned) + HEAD * kv_heads)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_rows_are_those_of_the_plain_matrix_in_another_order(folder: Path, ranks: int) -> None:
    rows = [HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD]
    names = [f"{AT}{name}_proj" for name in "qkv"]
    held = Held([[range(count // ranks)] for count in rows], range(CONFIG["hidden_size"])) if ranks > 1 else None
    matrix = Matrix(names, rows, CONFIG["hidden_size"], held=held)
    x = torch.randn(3, CONFIG["hidden_size"])
    plain = computed(folder, format_of(folder), matrix, x)
    ordered = computed(folder, format_of(folder), replace(matrix, orders=(PAIRS, PAIRS, None)), x)
    assert torch.equal(ordered, plain[:, places(HEADS // ranks, KV_HEADS // ranks)])
    assert not torch.equal(ordered, plain)


@pytest.mark.parametrize("form", [DenseFormat(), OnlineFormat("int8", ()), OnlineFormat("int4", ())])
def test_rows_that_are_quantised_as_they_are_read(form: Format) -> None:
    folder = model_folder("demo")
    source = Checkpoint.open(folder)
    names = [f"{AT}{name}_proj" for name in "qkv"]
    shapes = [source.places[f"{name}.weight"].shape for name in names]
    order = [*range(0, 64, 2), *range(1, 64, 2)]
    matrix = Matrix(names, [shape[0] for shape in shapes], shapes[0][1])
    x = torch.randn(3, shapes[0][1])
    plain = computed(folder, form, matrix, x)
    ordered = computed(folder, form, replace(matrix, orders=(order, order, None)), x)
    turned = sum(shape[0] for shape in shapes[:2])
    where = [64 * head + place for head in range(turned // 64) for place in order]
    assert torch.equal(ordered, plain[:, [*where, *range(turned, plain.shape[1])]])
