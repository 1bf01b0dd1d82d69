"""The list of planted defects fits the tree. Whether each is caught takes a long time: tests/defects/run.py."""

from __future__ import annotations

from collections.abc import Iterator

from defect_list import ROOT, Defect, read_defects

DEFECTS = read_defects()


def test_every_part_has_planted_defects() -> None:
    assert {d.area for d in DEFECTS} >= {
        "agent", "celery", "cli", "client", "decoding", "engine", "gateway", "lua", "memory", "parsing",
    }  # fmt: skip
    assert len(DEFECTS) >= 120
    assert len({(d.area, d.name) for d in DEFECTS}) == len(DEFECTS)


def problems_of(defect: Defect) -> Iterator[str]:
    if bool(defect.tests) == bool(defect.unchanged):
        yield "it has tests, or a reason to have none"
    for test in defect.tests:
        if not (ROOT / test.split("::")[0]).exists():
            yield f"there is no {test}"
    source = (ROOT / defect.file).read_text(encoding="utf-8")
    planted = defect.plant(source)
    if planted == source:
        yield "it changes nothing"
    if defect.file.endswith(".py"):
        compile(planted, defect.file, "exec")


def test_a_defect_has_its_place_and_tests() -> None:
    found = []
    for defect in DEFECTS:
        try:
            found += [f"{defect.area}: {defect.name}: {problem}" for problem in problems_of(defect)]
        except (OSError, ValueError, SyntaxError) as error:
            found.append(f"{defect.area}: {defect.name}: {error}")
    assert not found, "\n".join(found)
