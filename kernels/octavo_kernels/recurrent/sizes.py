"""Sizes of recurrent layers that the kernels of a GPU take (csrc/cuda/recurrent)."""

from __future__ import annotations

DELTA_HEADS = ((128, 128), (96, 192))
"""Elements of a key and of a value of the delta rule: rows and columns of a state."""
SSM_ROWS = (128, 256)
"""Rows of a state of Mamba2: elements of B and C."""
TAPS = 4
MOST_SHARING = 4
"""Heads of the delta rule that share a key head: their blocks are one cluster."""
COLUMNS = 64
"""Elements of a head of Mamba2, or multiples of these."""
SHORT_TAPS = (2, 3, 4)
WORD = 4
"""Elements that a kernel loads at once."""


def check_delta(key_heads: int, heads: int, key_dim: int, value_dim: int, taps: int) -> None:
    """Raises ValueError for a layer of the gated delta rule that no kernel takes; see `delta_step`."""
    known = " or ".join(f"{keys} and {values}" for keys, values in DELTA_HEADS)
    head = f"keys and values of {key_dim} and {value_dim} elements"
    _check((key_dim, value_dim) in DELTA_HEADS, f"{head}, and not {known}")
    _check(taps == TAPS, f"a convolution of {taps} taps, and not {TAPS}")
    _check(heads <= MOST_SHARING * key_heads, f"{heads} heads to {key_heads} key heads, more than {MOST_SHARING} each")
    _check(2 * heads % WORD == 0, f"{heads} heads, an odd number")


def check_ssm(heads: int, size: int, head_dim: int, taps: int) -> None:
    """Raises ValueError for a layer of Mamba2 that no kernel takes; see `ssm_step`."""
    _check(size in SSM_ROWS, f"states of {size} rows, and not {' or '.join(map(str, SSM_ROWS))}")
    _check(head_dim % COLUMNS == 0, f"heads of {head_dim} elements, no multiple of {COLUMNS}")
    _check(taps == TAPS, f"a convolution of {taps} taps, and not {TAPS}")
    _check(heads % WORD == 0, f"{heads} heads, no multiple of {WORD}")


def check_conv(channels: int, taps: int) -> None:
    """Raises ValueError for short convolutions that no kernel takes; see `conv_step`."""
    _check(taps in SHORT_TAPS, f"convolutions of {taps} taps, and not {SHORT_TAPS[0]} to {SHORT_TAPS[-1]}")
    _check(channels % WORD == 0, f"{channels} channels, no multiple of {WORD}")


def _check(fits: bool, found: str) -> None:
    if not fits:
        raise ValueError(found)
