"""docs/architecture.md names the modules that a job enters, in order, as a real job on the demo model enters them."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from journeys import RECORDER, record

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()
ROOTS = [ROOT, *(ROOT / folder for folder in ("shared", "gateway", "worker", "kernels"))]


Record = Callable[[int], dict[str, list[str]]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The modules of one of several runs."""

    @cache
    def run(number: int) -> dict[str, list[str]]:
        return record(tmp_path_factory.mktemp(f"journey-{number}"))

    return run


def section(heading: str) -> str:
    """From a heading of any level to the next one."""
    (body,) = re.findall(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", DOCUMENT, flags=re.DOTALL | re.MULTILINE)
    return body


def stations(heading: str) -> list[str]:
    """The modules that the numbered items of a section begin with."""
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section(heading), flags=re.MULTILINE)


SUPPORTING = set(re.findall(r"^\| `([\w/]+\.py)`", section("Supporting modules"), flags=re.MULTILINE))


@pytest.mark.full
@pytest.mark.parametrize("process", ["gateway", "agent", "engine"])
def test_the_journey_of_a_job_names_every_module_in_the_order_of_entry(process: str, recorded: Record) -> None:
    """A claim that the clock starts may fall into one recording, and not into each of three."""
    told = stations(f"In the {process}")
    for number in range(3):
        modules = [module for module in recorded(number)[process] if module not in SUPPORTING]
        if modules == told:
            return
    assert told == modules, "python tests/support/journeys.py prints what was entered"


@pytest.mark.full
def test_the_journey_of_a_block_is_a_part_of_that(recorded: Record) -> None:
    block = stations("A block's journey")
    assert len(block) > 5
    assert [module for module in recorded(0)["engine"] if module in block] == block


def test_every_file_that_the_document_names_exists():
    named = set(re.findall(r"`([\w/.]+\.(?:py|lua|cu|cuh|h|cpp))`", DOCUMENT))
    assert named
    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in ROOTS)] == []


def test_the_chores_that_the_recorder_leaves_out_exist():
    source = "".join(path.read_text() for folder in ROOTS[1:] for path in folder.rglob("*.py"))
    chores = runpy.run_path(str(RECORDER / "sitecustomize.py"))["CHORES"]
    assert [name for name in chores if f"def {name.rpartition('.')[2]}(" not in source] == []
