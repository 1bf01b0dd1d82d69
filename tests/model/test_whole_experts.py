"""Ranks that have whole experts: chosen where their columns do not divide, from every form of checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matrix_forms import FORMS
from safetensors.torch import save_file
from small_mixtures import DOWN, QWEN3, UP, assert_ranks_sum_up, loaded, mixture, pack_experts, saved, stack
from transformers import Qwen3MoeConfig

from octavo_kernels import ops
from octavo_kernels.ops import RouterLogits, Routing
from octavo_worker.contract.options import OnlineQuantization
from octavo_worker.model.checkpoint.formats import DenseFormat, OnlineFormat, Reader, format_of
from octavo_worker.model.checkpoint.mixtures import MixtureReader
from octavo_worker.model.checkpoint.source import Checkpoint, RandomWeights
from octavo_worker.model.config import MixtureMlp
from octavo_worker.model.errors import ModelError
from octavo_worker.model.families import decoder_config
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.layers.mixture import Mixture, assigned_to
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.shards import Shards
from octavo_worker.ranks.rank import Rank

ODD = Qwen3MoeConfig(**QWEN3.to_dict() | {"moe_intermediate_size": 65})


def test_ranks_that_do_not_divide_an_expert_have_whole_ones(tmp_path: Path) -> None:
    tensors = saved(tmp_path, ODD)
    assert_ranks_sum_up(tmp_path, ODD, "auto")
    assert_ranks_sum_up(tmp_path, ODD, "auto", ranks=2)
    up, down = stack(tensors)
    save_file(tensors | {UP: up.mT.contiguous(), DOWN: down}, tmp_path / "model.safetensors")
    assert_ranks_sum_up(tmp_path, ODD, "auto")


def test_ranks_that_divide_an_expert_have_a_part_of_each() -> None:
    described = decoder_config(QWEN3)
    assert described is not None
    assert not Shards(described, Rank(0, 2)).has_whole_experts
    assert [Shards(described, Rank(index, 2), "whole").experts(7) for index in range(2)] == [range(3), range(3, 7)]


def test_what_cannot_be_shared_out_is_refused(tmp_path: Path) -> None:
    ODD.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="65 columns of the MLP cannot be shared out among 2 ranks"):
        loaded(tmp_path, experts="split", load_format="dummy", tensor_parallel=2)
    with pytest.raises(ModelError, match=r"and 6 experts and .* cannot be shared out among 7 ranks"):
        loaded(tmp_path, load_format="dummy", tensor_parallel=7)


@pytest.mark.full(but=4)
@pytest.mark.parametrize("form", FORMS)
def test_quantised_experts(form: str, tmp_path: Path) -> None:
    pack_experts(tmp_path, form)
    assert_ranks_sum_up(tmp_path, QWEN3, "whole")


def test_all_are_read_that_other_ranks_have(tmp_path: Path) -> None:
    """As far as their names go: what no rank reads is refused."""
    pack_experts(tmp_path, "mxfp4")
    described = decoder_config(QWEN3)
    assert described is not None
    source = Checkpoint.open(tmp_path)
    reader = Reader(source, torch.float32, torch.device("cpu"), Products())
    mlp = described.layers[0].mlp
    assert isinstance(mlp, MixtureMlp)
    shards = Shards(described, Rank(1, 2), "whole")
    MixtureReader(described, reader, format_of(tmp_path), shards).read("model.layers.0.", mlp)
    assert not [name for name in source.unread if ".experts." in name]


@pytest.mark.parametrize("kind", [None, "int4", "fp8"])
def test_random_experts_are_those_of_one_process(kind: OnlineQuantization | None) -> None:
    """Also where they are quantised as they are drawn."""
    described = decoder_config(QWEN3)
    assert described is not None
    mlp = described.layers[0].mlp
    assert isinstance(mlp, MixtureMlp)

    def read(shards: Shards | None) -> Mixture:
        source = RandomWeights(3, 1.0, torch.device("cpu"))
        reader = Reader(source, torch.float32, torch.device("cpu"), Products())
        form = OnlineFormat(kind, ["lm_head"]) if kind else DenseFormat()
        return MixtureReader(described, reader, form, shards).read("model.layers.0.", mlp)

    x = Input(torch.randn(9, 128, generator=torch.Generator().manual_seed(2)))
    parts = [read(Shards(described, Rank(index, 2), "whole")) for index in range(2)]
    torch.testing.assert_close(sum(part.apply(x) for part in parts), read(None).apply(x), rtol=0, atol=2e-5)


def test_a_rank_whose_experts_no_row_takes_adds_nothing(tmp_path: Path) -> None:
    saved(tmp_path)
    described = decoder_config(QWEN3)
    assert described is not None
    first, second = (mixture(tmp_path, described, Shards(described, Rank(index, 2), "whole")) for index in range(2))
    for part in (first, second):
        part.router.logits.weight[:3], part.router.logits.weight[3:] = 1, -1
    x = Input(torch.rand(9, 128, generator=torch.Generator().manual_seed(2)))
    assert first.apply(x).count_nonzero()
    assert not second.apply(x).count_nonzero()


def test_assignments_to_some_experts_keep_their_places() -> None:
    taken = ops.route(torch.randn(5, 6, generator=torch.Generator().manual_seed(1)), Routing(6, 2, normalised=True))
    first, last = taken.starts[2].item(), taken.starts[5].item()
    some = assigned_to(range(2, 5), taken)
    assert torch.equal(some.starts, taken.starts[2:6])
    inside = (taken.places >= first) & (taken.places < last)
    assert torch.equal(some.places[inside], taken.places[inside])
    assert (some.places[~inside] == -1).all()
    assert some.sources is taken.sources
    logits = RouterLogits(torch.randn(3, 6), Routing(6, 2))
    assert assigned_to(range(2, 5), logits) == logits._replace(owned=range(2, 5))
