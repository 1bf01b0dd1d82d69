"""The CUDA sources are those that were last compiled and tried without a GPU."""

import json

from .compiled import BUILD, CSRC, FOR_CPUS, RECORD, ROOT, build_texts, digests, sources_of, units


def test_the_record_is_of_these_sources() -> None:
    recorded, now = json.loads(RECORD.read_text())["units"], digests()
    changed = sorted(name for name in recorded.keys() | now.keys() if recorded.get(name) != now.get(name))
    assert not changed, f"`make compiled` compiles, tests and records what has changed: {', '.join(changed)}"


def test_a_unit_is_what_it_includes_and_no_more() -> None:
    names = {path.relative_to(CSRC).as_posix() for path in sources_of(CSRC / "cuda/linear/linear_row.cu")}
    assert {"cuda/linear/linear_row.cu", "cuda/linear/linear.cuh", "cuda/device/common.cuh", "operands.h"} <= names
    assert not any(name.startswith(("cpu/", "cuda/sampling/", "cuda/attention/")) for name in names)


def test_units_and_what_they_include_are_all_sources_for_gpus() -> None:
    """A header that belongs to no unit would change unnoticed, and one for CPUs is in none."""
    found = {path for unit in units() for path in sources_of(unit)}
    assert {path for path in (CSRC / "cuda").rglob("*") if path.suffix in (".h", ".cuh")} <= found
    assert not any(path.is_relative_to(CSRC / "cpu") for path in found)
    assert len(units()) > 40


def test_what_builds_the_cpu_module_is_no_part_of_it() -> None:
    first = (ROOT / "kernels/CMakeLists.txt").read_text()
    assert FOR_CPUS.search(first)
    kept = build_texts()["kernels/CMakeLists.txt"]
    assert "mavx512" not in kept
    assert "CMAKE_CXX_STANDARD" in kept
    assert BUILD in digests()
