"""The list of planted defects fits the tree. Whether each is caught takes a long time: tests/defects/run.py."""

from __future__ import annotations

import pytest
from defect_list import ROOT, Defect, read_defects

DEFECTS = read_defects()


def test_every_part_has_planted_defects() -> None:
    assert {d.area for d in DEFECTS} >= {
        "agent", "celery", "cli", "client", "decoding", "engine", "gateway", "lua", "memory", "parsing",
    }  # fmt: skip
    assert len(DEFECTS) >= 120
    assert len({(d.area, d.name) for d in DEFECTS}) == len(DEFECTS)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: f"{d.area}: {d.name}")
def test_a_defect_has_its_place_and_tests(defect: Defect) -> None:
    source = (ROOT / defect.file).read_text(encoding="utf-8")
    planted = defect.plant(source)
    assert planted != source
    if defect.file.endswith(".py"):
        compile(planted, defect.file, "exec")
    assert bool(defect.tests) != bool(defect.unchanged)
    for test in defect.tests:
        assert (ROOT / test.split("::")[0]).exists()
