"""Recurrent layers: against the reference and transformers' own, and bit for bit under any cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recurrent_layers import LAYERS, Layer, Part, conv_layer, delta_layer, moves_of, run, same, ssm_layer

from octavo_kernels import checks, ops

ROWS = 40
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> Layer:
    return LAYERS[request.param]()


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_and_states_are_those_of_the_reference(level: str, kind: str, dtype: torch.dtype) -> None:
    layer = LAYERS[kind](dtype=dtype)
    x, parts = layer.rows(30), [Part(17, write=3, keeps=[(4, 5)]), Part(1, write=2), Part(12, write=1, keeps=[(12, 6)])]
    states, wanted = layer.states(), layer.states(matrix_dtype=torch.float64)
    out, reference = run(layer, x, states, parts), layer.plain(x, wanted, moves_of(parts))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.float(), reference.float(), atol=tolerance, rtol=tolerance)
    for slot in (1, 2, 3, 5, 6):
        assert torch.equal(states.columns[slot], wanted.columns[slot])
        if states.matrices is not None and wanted.matrices is not None:
            torch.testing.assert_close(
                states.matrices[slot].double(), wanted.matrices[slot], atol=TOLERANCE[torch.float32], rtol=1e-4
            )
    assert states.columns[4].isnan().all(), "a slot that no sequence names was touched"


@given(cuts=st.sets(st.integers(1, ROWS - 1)), kind=st.sampled_from(list(LAYERS)))
def test_no_cut_shows_in_outputs_or_states(cuts: set[int], kind: str) -> None:
    layer = LAYERS[kind](dtype=torch.bfloat16)
    x, whole, pieces = layer.rows(ROWS), layer.states(), layer.states()
    expected = run(layer, x, whole, [Part(ROWS, write=1)])
    outputs, slot = [], 0
    for place, (begin, end) in enumerate(pairwise([0, *sorted(cuts), ROWS])):
        written = 1 + place % 2  # in place, and from one slot to another
        outputs.append(run(layer, x[begin:end], pieces, [Part(end - begin, slot, written)]))
        slot = written
    assert torch.equal(torch.cat(outputs), expected)
    assert same(pieces, slot, whole, 1)


def test_in_place_and_to_another_slot_are_the_same(layer: Layer) -> None:
    x, states = layer.rows(9), layer.states()
    run(layer, x[:4], states, [Part(4, write=1, keeps=[(4, 2)])])
    moved = run(layer, x[4:], states, [Part(5, read=1, write=3)])
    assert same(states, 1, states, 2), "the slot that is read stays as it was"
    assert torch.equal(run(layer, x[4:], states, [Part(5, read=2, write=2)]), moved)
    assert same(states, 2, states, 3)


def test_what_is_kept_is_what_a_shorter_step_leaves(layer: Layer) -> None:
    x, states = layer.rows(11), layer.states()
    run(layer, x, states, [Part(11, write=1, keeps=[(n, n + 1) for n in range(1, 12)])])
    for n in range(1, 12):
        shorter = layer.states()
        run(layer, x[:n], shorter, [Part(n, write=1)])
        assert same(states, n + 1, shorter, 1)
    assert same(states, 12, states, 1)


def test_rows_alone_are_those_of_a_batch(level: str, layer: Layer) -> None:
    lengths = [1, 13, 2, 1, 8]
    x, states, start = layer.rows(sum(lengths)), layer.states(), 0
    together = run(layer, x, states, [Part(n, write=s + 1) for s, n in enumerate(lengths)])
    for s, n in enumerate(lengths):
        alone = layer.states()
        assert torch.equal(run(layer, x[start : start + n], alone, [Part(n, write=7)]), together[start : start + n])
        assert same(alone, 7, states, s + 1)
        start += n


def test_threads_change_no_bit(threads: None, layer: Layer) -> None:
    x, parts = layer.rows(50), [Part(20, write=1), Part(1, write=2), Part(29, write=3)]
    one, three = layer.states(), layer.states()
    ops.set_num_threads(1)
    expected = run(layer, x, one, parts)
    ops.set_num_threads(3)
    assert torch.equal(run(layer, x, three, parts), expected)
    assert all(same(one, slot, three, slot) for slot in (1, 2, 3))


def test_sequences_may_read_one_slot(layer: Layer) -> None:
    x, states = layer.rows(6), layer.states()
    run(layer, x[:4], states, [Part(4, write=1)])
    twice = run(layer, x[[4, 4, 5]], states, [Part(1, 1, 2), Part(2, 1, 3)])
    assert torch.equal(twice[0], twice[1])
    again = layer.states()
    assert torch.equal(run(layer, x, again, [Part(6, write=1)])[4:], twice[1:])
    assert same(states, 3, again, 1)


def test_padding_begins_with_zeros_and_stores_nothing(layer: Layer) -> None:
    x, states = layer.rows(5), layer.states()
    parts = [Part(3, write=1), Part(1), Part(1), Part(0)]
    out = run(layer, x, states, parts)
    assert not out.isnan().any()
    assert torch.equal(out[3:4], run(layer, x[3:4], layer.states(), [Part(1, write=4)]))
    untouched = [slot for slot in range(len(states.columns)) if slot != 1]
    assert states.columns[untouched].isnan().all()
    assert states.matrices is None or states.matrices[untouched].isnan().all()


def test_a_keep_behind_rows_that_are_not_there_is_not_stored(layer: Layer) -> None:
    states = layer.states()
    run(layer, layer.rows(2), states, [Part(2, keeps=[(1, 4), (3, 5), (4, 0)])])
    assert not states.columns[4].isnan().any()
    assert states.columns[5].isnan().all()
    assert states.matrices is None or states.matrices[5].isnan().all()


def test_an_empty_sequence_hands_its_state_on(layer: Layer) -> None:
    x, states = layer.rows(3), layer.states()
    run(layer, x, states, [Part(3, write=1)])
    assert len(run(layer, x[:0], states, [Part(0, 1, 2)])) == 0
    assert same(states, 1, states, 2)
    assert len(run(layer, x[:0], states, [])) == 0


def test_outputs_go_where_they_are_asked_for(layer: Layer) -> None:
    x, parts = layer.rows(4), moves_of([Part(4)])
    wide = torch.zeros(4, layer.inner + 8, dtype=layer.dtype)
    out = layer.step(x, layer.states(), parts, out=wide[:, : layer.inner])
    assert out.data_ptr() == wide.data_ptr()
    assert torch.equal(wide[:, : layer.inner], layer.step(x, layer.states(), parts))
    assert not wide[:, layer.inner :].any()


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"read": torch.zeros(2)}, "read must be torch.int32"),
        ({"write": torch.zeros(3, dtype=torch.int32)}, "write must have shape"),
        ({"query_start": torch.zeros(2, dtype=torch.int32)}, "query_start must have shape"),
        ({"keep_slot": torch.zeros(1, dtype=torch.int32)}, "keep_slot must have shape"),
    ],
)
def test_moves_that_do_not_fit_are_named(layer: Layer, spoilt: dict[str, torch.Tensor], message: str) -> None:
    moves = moves_of([Part(1), Part(1)])._replace(**spoilt)
    with pytest.raises((TypeError, ValueError), match=message):
        layer.step(layer.rows(2), layer.states(), moves)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part(2, read=24), "read"),
        (Part(2, write=-1), "write"),
        (Part(2, keeps=[(1, 99)]), "keep_slot"),
        (Part(2, keeps=[(0, 1)]), "keep_after"),
        (Part(3), "query_start"),
    ],
)
def test_values_out_of_range_are_named_where_they_are_checked(
    monkeypatch: pytest.MonkeyPatch, layer: Layer, part: Part, message: str
) -> None:
    monkeypatch.setattr(checks, "ENABLED", True)
    with pytest.raises(ValueError, match=message):
        run(layer, layer.rows(2), layer.states(), [part])


def test_operands_that_do_not_fit_are_named() -> None:
    layer, moves = delta_layer(), moves_of([Part(1)])
    with pytest.raises(ValueError, match="x must have shape"):
        layer.step(layer.rows(1)[:, 1:], layer.states(), moves)
    with pytest.raises(TypeError, match="columns must be"):
        layer.step(layer.rows(1), delta_layer(dtype=torch.bfloat16).states(), moves)
    with pytest.raises(ValueError, match=r"needs states\.matrices"):
        layer.step(layer.rows(1), layer.states()._replace(matrices=None), moves)
    with pytest.raises(ValueError, match="cannot share 3 key heads"):
        (uneven := delta_layer(3, 4)).step(uneven.rows(1), uneven.states(), moves)
    with pytest.raises(ValueError, match="cannot share 3 groups"):
        (uneven := ssm_layer(3, 4)).step(uneven.rows(1), uneven.states(), moves)
    with pytest.raises(ValueError, match="2 to 8 taps"):
        (deep := conv_layer(taps=9)).step(deep.rows(1), deep.states(), moves)


def test_a_state_of_many_tokens_stays_close_to_float64() -> None:
    """Errors of float32 do not pile up: 600 tokens, some of which the state hardly forgets."""
    layer = delta_layer(2, 4, 32, 32)
    layer.step.keywords["rates"].mul_(0.01)  # type: ignore[attr-defined]
    x, states, exact = layer.rows(600), layer.states(), layer.states(matrix_dtype=torch.float64)
    out, wanted = run(layer, x, states, [Part(600, write=1)]), layer.plain(x, exact, moves_of([Part(600, write=1)]))
    torch.testing.assert_close(out, wanted, atol=1e-4, rtol=1e-4)


def test_columns_of_short_sequences_are_moved_up() -> None:
    layer = conv_layer(8, taps=4)
    x, states = layer.rows(2), layer.states()
    run(layer, x[:1], states, [Part(1, write=1)])
    b, _, values = x.chunk(3, dim=-1)
    assert torch.equal(states.columns[1], torch.cat((torch.zeros(2, 8), (b * values)[:1])))
    run(layer, x[1:], states, [Part(1, 1, 1)])
    assert torch.equal(states.columns[1], torch.cat((torch.zeros(1, 8), b * values)))
