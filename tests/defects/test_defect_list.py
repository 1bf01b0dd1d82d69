"""The list of planted defects fits the tree. Whether each is caught takes a long time: tests/defects/run.py."""

from __future__ import annotations

from collections.abc import Iterator

from defect_list import ROOT, Defect, read_catchers, read_defects

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


CATCHERS = {(area, name): test for area, tests in read_catchers().items() for name, test in tests.items()}
CAUGHT = {(defect.area, defect.name): defect for defect in DEFECTS if not defect.unchanged}


def test_what_is_written_of_catchers_is_of_defects_and_tests_that_are_there() -> None:
    found = [f"no such defect: {area}: {name}" for area, name in CATCHERS.keys() - CAUGHT.keys()]
    for key, test in CATCHERS.items():
        file, _, rest = test.partition("::")
        name = rest.partition("[")[0]
        if not (ROOT / file).exists() or f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8"):
            found.append(f"{key[0]}: {key[1]}: no such test: {test}")
        if key in CAUGHT and CAUGHT[key].full not in ("", test):
            found.append(f"{key[0]}: {key[1]}: its entry names {CAUGHT[key].full}, but {test} caught it")
    assert not found, "\n".join(found)


def test_the_quick_tier_catches_nine_in_ten() -> None:
    beyond = [defect.name for defect in CAUGHT.values() if defect.full]
    assert len(beyond) <= len(CAUGHT) / 10, "\n".join(beyond)
