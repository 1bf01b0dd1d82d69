"""Record of a draft model's computations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch import Tensor

from octavo_worker.model.batch import Batch
from octavo_worker.runner.paged import PagedRunner


@contextmanager
def watched(runner: PagedRunner) -> Iterator[list[int]]:
    """How many tokens the draft model computes in each pass."""
    assert runner.draft_model is not None
    model, computed = runner.draft_model.model, list[int]()
    forward = model.forward

    def counted(batch: Batch, rows: Tensor | None) -> Tensor:
        computed.append(len(batch.token_ids))
        return forward(batch, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", counted)
        yield computed
