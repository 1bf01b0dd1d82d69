"""Recurrent layers of the CPU compiled from the sources that lie here, whatever build of the kernels is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pybind11
import pytest
import torch
from recurrent_layers import LAYERS, Part, moves_of, run, same

from octavo_kernels import call

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "kernels" / "csrc" / "cpu"
ENTRY = ROOT / "tests" / "kernels" / "cpu" / "recurrent_entry.cpp"
FILES = [ENTRY, *(SOURCES / name for name in ("recurrent.cpp", "recurrent_bindings.cpp", "thread_pool.cpp"))]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    target = tmp_path_factory.mktemp("recurrent") / f"recurrent_source{sysconfig.get_config_var('EXT_SUFFIX')}"
    folders = [pybind11.get_include(), sysconfig.get_paths()["include"]]
    flags = [
        f"-iquote{SOURCES}",
        "-std=gnu++17",
        "-O1",
        "-shared",
        "-fPIC",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-pthread",
    ]
    command = [
        "g++",
        f"-iquote{SOURCES}",
        *flags,
        *(f"-I{folder}" for folder in folders),
        *map(str, FILES),
        "-o",
        str(target),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spec = importlib.util.spec_from_file_location("recurrent_source", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def taken(compiled: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_cpu", compiled)


@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_and_states_are_those_of_the_reference(kind: str) -> None:
    layer = LAYERS[kind]()
    x, parts = layer.rows(30), [Part(17, write=3, keeps=[(4, 5)]), Part(1, write=2), Part(11, write=1), Part(1)]
    states, wanted = layer.states(), layer.states(matrix_dtype=torch.float64)
    out, reference = run(layer, x, states, parts), layer.plain(x, wanted, moves_of(parts))
    torch.testing.assert_close(out, reference.float(), atol=2e-5, rtol=2e-5)
    for slot in (1, 2, 3, 5):
        assert torch.equal(states.columns[slot], wanted.columns[slot])
        if states.matrices is not None and wanted.matrices is not None:
            torch.testing.assert_close(states.matrices[slot].double(), wanted.matrices[slot], atol=2e-5, rtol=1e-4)
    untouched = [slot for slot in range(len(states.columns)) if slot not in (1, 2, 3, 5)]
    assert states.columns[untouched].isnan().all()


@pytest.mark.parametrize("kind", LAYERS)
def test_no_cut_shows(kind: str) -> None:
    layer = LAYERS[kind](dtype=torch.bfloat16)
    x, whole, pieces = layer.rows(40), layer.states(), layer.states()
    expected = run(layer, x, whole, [Part(40, write=1, keeps=[(2, 3), (11, 4)])])
    outputs, slot = [], 0
    for place, (begin, end) in enumerate(pairwise([0, 1, 2, 11, 30, 40])):
        outputs.append(run(layer, x[begin:end], pieces, [Part(end - begin, slot, 1 + place % 2)]))
        slot = 1 + place % 2
        if end in (2, 11):
            assert same(pieces, slot, whole, 3 if end == 2 else 4)
    assert torch.equal(torch.cat(outputs), expected)
    assert same(pieces, slot, whole, 1)
