"""Which prompts of latent attention are expanded, what one layer then computes, and how much memory that takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo_kernels import cuda, ops, reference
from octavo_worker.model import expansion
from octavo_worker.model.config import LatentLayer
from octavo_worker.model.expansion import Expansion, ExpansionRoom, expanded_layer, head_dim
from octavo_worker.model.stage import Stage

GPU, CPU = torch.device("cuda"), torch.device("cpu")
GLM = LatentLayer(0.0625, "rope", heads=20, rank=512, plain=192, rotated=64, value_dim=256)
DEEPSEEK = LatentLayer(0.07, "rope", heads=128, rank=512, plain=128, rotated=64, value_dim=128)
TINY = LatentLayer(0.3, "rope", heads=6, rank=24, plain=40, rotated=8, value_dim=32)


def room_of(layer: LatentLayer, most_keys: int) -> ExpansionRoom:
    """A room without memory."""
    return ExpansionRoom(layer, torch.bfloat16, torch.device("meta"), 16, most_keys)


def first(layer: LatentLayer, sequences: list[tuple[int, int]], decodes: int = 0, most_keys: int = 140_000) -> Any:
    """The first sequence that is expanded, and heads at once, of a step with `sequences` of queries and contexts."""
    queries, contexts = np.array(sequences, np.int32).T
    return room_of(layer, most_keys).first_expanded(queries, contexts, decodes)


@pytest.mark.parametrize("layer", [GLM, DEEPSEEK])
@pytest.mark.parametrize(("queries", "context"), [(8192, 8192), (8192, 32768), (2048, 32768), (2048, 2048)])
def test_long_prompts_are_expanded(layer: LatentLayer, queries: int, context: int) -> None:
    assert first(layer, [(queries, context)])[0] == 0


@pytest.mark.parametrize("layer", [GLM, DEEPSEEK])
@pytest.mark.parametrize(("queries", "context"), [(1, 32768), (64, 64), (512, 512), (64, 32768), (300, 120_000)])
def test_keys_that_few_queries_read_are_not_made(layer: LatentLayer, queries: int, context: int) -> None:
    assert first(layer, [(queries, context)]) == (1, 0)


def test_heads_are_those_that_have_room_at_once() -> None:
    """A gibibyte holds a million keys of a head, as wide as 256 with its value."""
    assert first(GLM, [(8192, 50_000)]) == (0, 20)
    assert first(GLM, [(8192, 60_000)]) == (0, 10)
    assert first(GLM, [(8192, 131_072)]) == (0, 5)
    assert first(DEEPSEEK, [(8192, 8192)]) == (0, 128)
    assert first(DEEPSEEK, [(8192, 8193)]) == (0, 64)


def test_decodes_and_what_saves_nothing_before_a_prompt_are_absorbed() -> None:
    decodes = [(1, 5000)] * 3
    assert first(GLM, [*decodes, (4096, 4096)], 3)[0] == 3
    assert first(GLM, [*decodes, (100, 9000), (4096, 4096)], 3)[0] == 4
    assert first(GLM, [*decodes, (4096, 4096), (2048, 30_000)], 3)[0] == 3
    assert first(GLM, [(1, 10)] * 3, 3) == (3, 0)


def test_what_stands_behind_a_prompt_is_expanded_with_it_if_that_still_saves() -> None:
    assert first(GLM, [(8192, 8192), (100, 200)])[0] == 0
    assert first(GLM, [(2048, 2048), (16, 130_000)]) == (2, 0)
    assert first(GLM, [(2048, 2048), (16, 130_000), (4096, 16_384)])[0] == 2


def test_what_has_no_room_head_by_head_is_absorbed() -> None:
    assert first(GLM, [(1024, 400_000)], most_keys=1000)[1] == 0
    assert first(GLM, [(8192, 400_000), (8192, 8192)], most_keys=10_000)[0] == 1


def test_few_tiles_of_few_heads_save_less() -> None:
    """A rank has few: with five heads 1,024 queries are 40 tiles, for 132 multiprocessors."""
    few = LatentLayer(0.0625, "rope", heads=5, rank=512, plain=192, rotated=64, value_dim=256)
    assert first(GLM, [(1024, 8192)])[0] == 0
    assert first(few, [(1024, 8192)])[1] == 0


@pytest.mark.parametrize(("layer", "width"), [(GLM, 256), (DEEPSEEK, 256), (TINY, 64)])
def test_heads_are_as_wide_as_a_kernel_takes(layer: LatentLayer, width: int) -> None:
    assert head_dim(layer) == width


def test_what_no_kernel_takes_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "runs_hopper_code", lambda device: True)

    def taken(
        *layers: LatentLayer, dtype: torch.dtype = torch.bfloat16, device: torch.device = GPU, **more: Any
    ) -> Any:
        return expanded_layer(layers, dtype, device, **{"uniform": False, **more})

    wide = LatentLayer(1.0, "rope", heads=2, rank=512, plain=256, rotated=64, value_dim=256)
    assert taken(GLM, GLM) == GLM
    assert taken(GLM, dtype=torch.float16) == GLM
    for nothing in (
        taken(), taken(GLM, DEEPSEEK), taken(wide), taken(GLM, device=CPU), taken(GLM, dtype=torch.float32),
        taken(GLM, uniform=True),
    ):  # fmt: skip
        assert nothing is None
    monkeypatch.setattr(cuda, "runs_hopper_code", lambda device: False)
    assert taken(GLM) is None


@pytest.mark.parametrize("layer", [GLM, DEEPSEEK, TINY])
@pytest.mark.parametrize("most_keys", [1000, 40_000, 300_000])
def test_memory_is_counted(layer: LatentLayer, most_keys: int) -> None:
    room = room_of(layer, most_keys)
    held = sum(value.nbytes for value in vars(room).values() if isinstance(value, Tensor))
    counted = ExpansionRoom.step_bytes(layer, torch.bfloat16, most_keys)
    assert held <= counted <= held + 16 * (layer.width + layer.heads * 1024) * 2
    assert counted < (1 << 30) + (1 << 28)


class Step:
    """Sequences of (queries, context) in one cache of latent rows, whose blocks are shuffled, and all of float32."""

    def __init__(self, lengths: list[tuple[int, int]], block_size: int = 16) -> None:
        generator = torch.Generator().manual_seed(7)
        c = TINY
        counts = [-(-context // block_size) for _, context in lengths]
        self.cache = torch.full((sum(counts) + 1, 1, 1, block_size * c.width), float("nan"))
        self.queries, self.contexts = np.array(lengths, np.int32).T
        self.tables = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        self.rows, order = [], torch.randperm(sum(counts), generator=generator).int() + 1
        for table, (_, context), blocks in zip(self.tables, lengths, order.split(counts), strict=True):
            table[: len(blocks)] = blocks
            self.rows.append(torch.randn(context, c.width, generator=generator))
            for place, row in enumerate(self.rows[-1]):
                block = self.cache[blocks[place // block_size]].view(c.width, block_size)
                block[:, place % block_size] = row
        self.to_latent = torch.randn(c.heads * c.rank, c.plain, generator=generator) / 5
        self.to_values = torch.randn(c.heads * c.value_dim, c.rank, generator=generator) / 5
        self.q = torch.randn(int(self.queries.sum()), c.heads, c.plain + c.rotated, generator=generator)
        self.context_lens = torch.from_numpy(self.contexts.copy())
        self.query_start = torch.tensor([0, *np.cumsum(self.queries)], dtype=torch.int32)
        self.block_size = block_size

    def absorbed(self) -> Tensor:
        """Values as kernels of latent rows compute them, on the CPU."""
        c = TINY
        met = torch.einsum("thp,hrp->thr", self.q[..., : c.plain], self.to_latent.view(c.heads, c.rank, c.plain))
        read = self.q.new_empty(len(self.q), c.heads, c.rank)
        met, sequences = torch.cat((met, self.q[..., c.plain :]), 2), (self.tables, self.context_lens, self.query_start)
        ops.latent_attention(met, self.cache, *sequences, read, c.scale, self.block_size)
        return torch.einsum("thr,hvr->thv", read, self.to_values.view(c.heads, c.value_dim, c.rank))

    def exact(self) -> Tensor:
        """Attention of each head over its own keys and values, in float64."""
        c, found = TINY, []
        for place, rows in enumerate(self.rows):
            latent, rotated = rows.double().split([c.rank, c.rotated], dim=1)
            keys = torch.einsum("nr,hrp->nhp", latent, self.to_latent.double().view(c.heads, c.rank, c.plain))
            keys = torch.cat((keys, rotated[:, None].expand(-1, c.heads, -1)), 2)
            values = torch.einsum("nr,hvr->nhv", latent, self.to_values.double().view(c.heads, c.value_dim, c.rank))
            own = self.q[int(self.query_start[place]) : int(self.query_start[place + 1])].double()
            padded = torch.nn.functional.pad(values, (0, keys.shape[2] - c.value_dim))
            found.append(reference.attention(own, keys, padded, c.scale)[..., : c.value_dim])
        return torch.cat(found)

    def expanded(self, room: ExpansionRoom, first: int, heads: int) -> Tensor:
        """Values of the sequences from `first` on."""
        c, row = TINY, int(self.query_start[first])
        stage = Stage.of(self.tables[first:], self.contexts[first:], self.block_size)
        lengths, starts = self.context_lens[first:], self.query_start[first:] - row
        step = Expansion(room, first, row, heads, stage, lengths, starts, None)
        q, out = self.q[row:], self.q.new_full((len(self.q) - row, c.heads, c.value_dim), float("nan"))
        step.attend(self.cache, (self.to_latent, self.to_values), q, q[..., c.plain :], out)
        return out


LENGTHS = [(1, 70), (5, 5), (30, 200), (64, 64), (1, 1), (17, 33)]


@pytest.mark.parametrize("block_size", [4, 16, 32])
@pytest.mark.parametrize("start", [0, 2, 5])
def test_a_layer_computes_what_the_absorbed_form_does(start: int, block_size: int) -> None:
    step = Step(LENGTHS, block_size)
    room = ExpansionRoom(TINY, torch.float32, CPU, block_size, 1000)
    found = step.expanded(room, start, TINY.heads)
    row = int(step.query_start[start])
    torch.testing.assert_close(found, step.absorbed()[row:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.double(), step.exact()[row:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_heads_and_pieces_may_come_one_after_the_other(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(LENGTHS)
    whole = step.expanded(ExpansionRoom(TINY, torch.float32, CPU, 16, 1000), 0, TINY.heads)
    monkeypatch.setattr(expansion, "PIECE_TOKENS", 48)
    room = ExpansionRoom(TINY, torch.float32, CPU, 16, 400)
    for _ in range(2):  # what another layer left in the room is not read
        torch.testing.assert_close(step.expanded(room, 0, heads), whole, atol=1e-6, rtol=1e-6)


def test_what_a_step_computes_in_either_form() -> None:
    step = Step([(1, 70), (1, 9), (3000, 3000), (20, 20)])
    room = ExpansionRoom(TINY, torch.float32, CPU, 16, 4000)
    room.prices = expansion.Prices(absorbed_pair=5.0, expanded_pair=1.0, query=0.0, key=10.0)
    parts = (step.tables, step.context_lens, step.query_start)
    made = Expansion.of(room, parts, step.queries, step.contexts, 2)
    assert made is not None
    assert (made.sequences, made.row, made.heads, made.plan) == (2, 2, 6, None)
    assert made.context_lens.tolist() == [3000, 20]
    assert made.query_start.tolist() == [0, 3000, 3020]
    assert made.stage.blocks.tolist() == [*step.tables[2].tolist(), *step.tables[3, :2].tolist()]
    assert Expansion.of(room, tuple(t[:2] for t in parts), step.queries[:2], step.contexts[:2], 2) is None  # type: ignore[arg-type]
