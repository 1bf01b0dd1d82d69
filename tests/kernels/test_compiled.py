"""The CUDA sources are those that were last compiled and tried without a GPU."""

import json

from .compiled import RECORD, digest, sources


def test_the_record_is_of_these_sources() -> None:
    record = json.loads(RECORD.read_text())
    assert record["sources"] == digest(), "CUDA sources have changed: `make compiled` compiles, tests and records them"


def test_it_covers_every_kernel() -> None:
    names = {path.name for path in sources()}
    assert {"module.cpp", "linear_row.cu", "coded_few.cu", "w8a8_wide.cu", "common.cuh", "device.h"} <= names
