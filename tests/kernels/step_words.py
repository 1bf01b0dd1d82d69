"""A small message of a step: of two sequences, one of which takes a token that the step before sampled. With `moves`
the other one keeps two states, with `windows` both have blocks of layers with a window beside the others."""

from __future__ import annotations

import numpy as np

from octavo_kernels import step


def step_message(*, moves: bool = False, windows: bool = False) -> np.ndarray:
    header, record, drawn = np.zeros(1, step.HEADER), np.zeros(2, step.SEQUENCE), np.zeros(2, step.SAMPLE)
    record["row"], record["context"], record["queries"], record["query_start"] = [1, 0], [20, 3], [1, 3], [0, 1]
    record["blocks"], record["group"], drawn["row"], drawn["top_p"] = [2, 1], -1, [0, 3], 1.0
    lengths = [part.nbytes // 4 for part in (header, record)]
    header["sequences"], header["tokens"], header["samples"] = 2, 4, 2
    header["sequence_at"], header["token_at"] = lengths[0], sum(lengths)
    header["sample_at"] = sum(lengths) + 4
    move, keep = np.zeros(2 * moves, step.MOVE), np.zeros(2 * moves, step.KEEP)
    if moves:
        move["read"], move["write"], move["keeps"] = [3, 0], [3, 4], [0, 2]
        keep["after"], keep["slot"] = [1, 3], [5, 6]
    block_at = sum(lengths) + 4 + sum(part.nbytes for part in (drawn, move, keep)) // 4
    record["block_at"] = [block_at, block_at + 2 + 2 * windows]
    parts = [
        header.view("<i4"),
        record.view("<i4"),
        [~0, 5, 6, 7],
        *(part.view("<i4") for part in (drawn, move, keep)),
        [3, 4, 0, 8, 2, 9] if windows else [3, 4, 2],
    ]
    return np.concatenate(parts).astype(np.int32)
