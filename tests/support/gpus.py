"""Is there a GPU that the kernels can use?"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@cache
def has_gpu() -> bool:
    if not any(Path(device).exists() for device in _DEVICES):
        return False
    import torch  # takes seconds, and most tests do without

    from octavo_kernels import cuda

    return torch.cuda.is_available() and cuda.available()


@cache
def is_whole() -> bool:
    """More than the plain kernels."""
    from octavo_kernels import cuda

    return cuda.has_tensor_cores()


def devices(*marks: pytest.MarkDecorator) -> list[object]:
    """The CPU and, where there is one, the GPU, whose tests have the mark `gpu` and those given."""
    return ["cpu", *([pytest.param("cuda", marks=[pytest.mark.gpu, *marks])] if has_gpu() else [])]
