"""Slots of recurrent states: how many there are, and what lies where in them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.assembly import cache_size
from octavo_worker.assembly.state_slots import host_slots, slot_bytes, state_slots
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.state import StateLayout, StateMove, StateSpec
from octavo_worker.model.errors import ModelError
from octavo_worker.model.recurrent.slots import empty_slots, layer_states, moves_of, no_moves

MIB = 1 << 20
SPECS = st.none() | st.builds(
    StateSpec,
    st.just(()) | st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4)),
    st.tuples(st.integers(1, 9), st.integers(1, 4)),
    st.sampled_from(["float32", "bfloat16", "float16"]),
)


@dataclass
class Keeping:
    """A model by what its layers keep."""

    states: tuple[StateSpec | None, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache: tuple[None, ...] = ()
    kept_bytes: int = 0
    group: None = None
    dtype: torch.dtype = torch.bfloat16


BIG = Keeping((StateSpec((32, 128, 128), (8192, 3), "bfloat16"), None) * 8)


def options(**values: object) -> ModelOptions:
    return ModelOptions(model="", **values)  # type: ignore[arg-type]


@given(st.lists(SPECS, min_size=1).filter(any))
def test_layers_share_no_byte_of_a_slot(specs: list[StateSpec | None]) -> None:
    layout = StateLayout.of(specs)
    slots = empty_slots(layout, 3, 0, torch.device("cpu")).device.zero_()
    views = [view for view in layer_states(slots, layout) if view is not None]
    parts = [part for view in views for part in view if part is not None]
    for number, part in enumerate(parts, 1):
        part[1] = number
    assert all((part[1] == number).all() for number, part in enumerate(parts, 1))
    assert not any(part[other].any() for part in parts for other in (0, 2))


def test_pools_of_slots_share_no_byte() -> None:
    pools = empty_slots(StateLayout.of([BIG.states[0]]), 3, 2, torch.device("cpu"))
    assert [len(pool) for pool in pools] == [3, 2]
    pools.device.fill_(1)
    pools.host.fill_(2)
    assert (pools.device == 1).all()


def test_moves_are_those_of_the_steps_and_none_where_none_has_one() -> None:
    starts = torch.tensor([0, 3, 4], dtype=torch.int32)
    assert moves_of([None, None], starts) is None
    moves = moves_of([StateMove(4, 5, ((1, 7), (3, 8))), None], starts)
    assert moves is not None
    assert [each.tolist() for each in moves] == [[0, 3, 4], [4, 0], [5, 0], [0, 2, 2], [1, 3], [7, 8]]
    assert [each.tolist() for each in no_moves(starts)] == [[0, 3, 4], [0, 0], [0, 0], [0, 0, 0], [], []]


def test_slots_are_for_running_sequences_and_for_snapshots() -> None:
    each = slot_bytes(BIG)  # type: ignore[arg-type]
    assert each == 8 * (2 * MIB + 48 * 1024)
    few = options(max_running=4)
    assert state_slots(few, BIG, 1000 * each) == 1 + 2 * 4 + 250  # type: ignore[arg-type]


def test_slots_take_half_of_the_memory_at_most() -> None:
    each = slot_bytes(BIG)  # type: ignore[arg-type]
    assert state_slots(options(), BIG, 100 * each) == 1 + 50  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"states of this model are 16 MiB a sequence.*--state-slots"):
        state_slots(options(), BIG, 3 * each)  # type: ignore[arg-type]
    assert state_slots(options(state_slots=3), BIG, 0) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize(("left", "slots"), [(64, 32), (20, 20), (1, None), (-3, None)])
def test_states_beside_a_cache_that_is_named_have_what_a_gpu_has_left(
    left: int, slots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much again as the cache, if there is as much."""
    each = slot_bytes(BIG)  # type: ignore[arg-type]
    asked = 32 * each
    monkeypatch.setattr(cache_size, "room_for_cache", lambda *_: asked + left * each)
    model, sized = replace(BIG, device=torch.device("cuda")), options(kv_cache_bytes=asked, host_cache_bytes=0)
    if slots is None:
        with pytest.raises(ModelError, match="no room for 2 beside keys and values"):
            cache_size.cache_config(sized, model, 1024, room=None)  # type: ignore[arg-type]
        return
    found = cache_size.cache_config(sized, model, 1024, room=None)  # type: ignore[arg-type]
    assert found.num_state_slots == 1 + slots


def test_a_model_without_states_has_no_slots() -> None:
    assert state_slots(options(state_slots=9), Keeping((None, None)), MIB) == 0  # type: ignore[arg-type]
    assert host_slots(options(host_cache_bytes=MIB), 0) == 0


def test_the_host_has_a_slot_for_each_running_sequence_or_half_of_its_memory() -> None:
    assert host_slots(options(host_cache_bytes=100, max_running=7), 5) == 8
    assert host_slots(options(host_cache_bytes=100), 5) == 11
    assert host_slots(options(host_cache_bytes=100), 51) == 0
