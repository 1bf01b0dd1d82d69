"""A slot's layout follows from what each recurrent layer keeps, and kernels see a step's moves as arrays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.contract.state import PART_ALIGNMENT, PIECE_ALIGNMENT, StateLayout, StateMove, StateMoves, StateSpec

SPECS = st.one_of(
    st.none(),
    st.builds(
        StateSpec,
        st.one_of(st.just(()), st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))),
        st.tuples(st.integers(0, 33), st.integers(0, 4)),
        st.sampled_from(["float32", "bfloat16", "float16"]),
    ),
)


@given(st.lists(SPECS, max_size=8))
def test_parts_of_a_slot_are_aligned_and_lie_side_by_side(specs: list[StateSpec | None]) -> None:
    layout = StateLayout.of(specs)
    end = 0
    for spec, piece in zip(layout.specs, layout.pieces, strict=True):
        assert (spec is None) == (piece is None)
        if spec is None or piece is None:
            continue
        assert piece.matrix % PIECE_ALIGNMENT == 0
        assert piece.columns % PART_ALIGNMENT == 0
        assert end <= piece.matrix
        assert piece.matrix + spec.matrix_bytes <= piece.columns
        end = piece.columns + spec.column_bytes
    assert end <= layout.slot_bytes < end + PIECE_ALIGNMENT
    assert layout.slot_bytes % PIECE_ALIGNMENT == 0


def test_matrices_have_four_bytes_an_element_and_columns_those_of_the_model() -> None:
    spec = StateSpec((32, 128, 128), (8192, 3), "bfloat16")
    assert (spec.matrix_bytes, spec.column_bytes) == (4 * 32 * 128 * 128, 2 * 8192 * 3)
    assert spec.nbytes == 2_146_304
    assert StateSpec((), (2048, 2), "bfloat16").nbytes == 8192


def test_a_model_without_recurrent_layers_has_slots_of_no_bytes() -> None:
    assert StateLayout.of([None, None]).slot_bytes == 0


def test_moves_are_arrays_whose_padding_touches_slot_0_alone() -> None:
    prompt, verified = StateMove(0, 4, ((2, 7), (5, 8))), StateMove(4, 0, ((1, 9),))
    moves = StateMoves.of([StateMove(3, 3), prompt, None, verified], rows=6)
    assert moves.read.tolist() == [3, 0, 0, 4, 0, 0]
    assert moves.write.tolist() == [3, 4, 0, 0, 0, 0]
    assert moves.keep_start.tolist() == [0, 0, 2, 2, 3, 3, 3]
    assert (moves.keep_after.tolist(), moves.keep_slot.tolist()) == ([2, 5, 1], [7, 8, 9])
    assert {part.dtype.name for part in (moves.read, moves.keep_start, moves.keep_after, moves.keep_slot)} == {"int32"}
