"""Imports run one way: gateway and worker to octavo, agent and engine meet only in messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from import_rules import RULES, Rule, imported

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.folder.rpartition('/')[2]}-{rule.never[0]}")
def test_imports_run_one_way(rule: Rule) -> None:
    assert rule.modules(ROOT), f"{rule.folder} holds no modules: the rule checks nothing"
    assert rule.violations(ROOT) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import torch.nn as nn",
        "from torch import nn",
        "def late():\n    from torch.nn import functional",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
    ],
)
def test_an_import_in_the_wrong_direction_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "loop.py").write_text(source)
    assert Rule("agent", ("torch",)).violations(tmp_path)


def test_relative_imports_are_resolved() -> None:
    assert set(imported("from ..engine import loop", "octavo_worker.agent")) == {
        "octavo_worker.engine",
        "octavo_worker.engine.loop",
    }


def test_a_name_that_only_begins_alike_is_no_violation(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "pool.py").write_text("import torchmetrics\nimport octavo_worker.memory")
    assert Rule("memory", ("torch", "octavo")).violations(tmp_path) == []


@pytest.mark.parametrize("package", ["octavo_gateway", "octavo_worker.agent", "octavo_worker.memory"])
def test_importing_a_package_that_needs_no_torch_does_not_load_it(package: str) -> None:
    """Transitively too: every module of the package is imported in a process of its own."""
    program = f"""
import importlib, pkgutil, sys
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(getattr(package, "__path__", []), {package!r} + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(sorted(name for name in ("torch", "transformers", "octavo_kernels") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_an_engine_starts_without_what_takes_longer_to_import_than_its_model_to_load() -> None:
    """Seconds of every start, and of every restart after a crash."""
    heavy = ("transformers", "sympy", "torch._dynamo", "tokenizers", "huggingface_hub", "jinja2", "pydantic", "redis")
    program = f"""
import sys
import octavo_worker.engine.process
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model import load_runner
load_runner(ModelOptions(model="demo", device="cpu", num_blocks=9, threads=1))
print(sorted(set({heavy!r}) & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
