"""Imports run one way: each package imports what its rule allows, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from import_rules import KERNELS, ROOMS, RULES, Rule, folder_of, imported, package_of, room_of
from waiting import STALL_S

ROOT = Path(__file__).parents[2]
HEAVY = ("sympy", "torch._dynamo", "tokenizers", "pydantic", "redis")


def test_imports_run_one_way() -> None:
    assert [rule.place for rule in RULES if not rule.modules(ROOT)] == [], "a rule without modules checks nothing"
    found = [violation for rule in RULES for violation in rule.violations(ROOT)]
    assert not found, "\n".join(found)


def test_every_module_has_one_rule() -> None:
    governed = [path for rule in RULES for path in rule.modules(ROOT)]
    folders = ("shared/octavo", "gateway/octavo_gateway", "worker/octavo_worker", "kernels/octavo_kernels")
    assert sorted(governed) == sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_between_rooms_run_down_the_list_only(room: str) -> None:
    below = ROOMS[ROOMS.index(room) :]
    arrows = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / folder_of(room)).rglob("*.py"))
        for name in imported(path.read_text(), package_of(path))
        if room_of(name) not in (None, *below)
    }
    assert arrows == set()


MOST_FLAT_MODULES = 20


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_few_modules_side_by_side(room: str) -> None:
    flat = [path for path in (ROOT / folder_of(room)).glob("*.py") if path.stem != "__init__"]
    assert flat
    assert len(flat) <= MOST_FLAT_MODULES, f"before a further flat file in {room}, find the seam"


AGENT, ENGINE, MODEL, MEMORY, RANKS = (
    f"worker/octavo_worker/{part}" for part in ("agent", "engine", "model", "memory", "ranks")
)
FORBIDDEN = [
    *((AGENT, f"octavo_worker.{name}") for name in ("engine", "model", "memory.block_pool", "contract.step", "bench")),
    *((AGENT, name) for name in ("octavo_worker.engine.beams.search", "torch", "octavo_kernels", "octavo.cli")),
    *((MODEL, f"octavo_worker.{name}") for name in ("agent", "memory", "engine.stop", "runner", "assembly")),
    *((MODEL, name) for name in ("redis", "octavo.terms.models", "octavo_gateway")),
    *((ENGINE, f"octavo_worker.{name}") for name in ("model", "agent", "assembly.settings", "runner")),
    *((ENGINE, name) for name in ("torch", "redis", "octavo", "octavo.queue.protocol", "octavo_kernels")),
    *((MEMORY, name) for name in ("numpy", "octavo_worker.contract.messages", "octavo_worker.contract.step", "torch")),
    *((RANKS, name) for name in ("octavo_worker.model.shards", "octavo_worker.runner.base", "redis")),
    *(("shared/octavo/terms", name) for name in ("redis", "octavo.queue.wire", "typer", "torch")),
    *(("shared/octavo/queue", name) for name in ("octavo_worker", "octavo.client.requests", "typer", "octavo.cli.app")),
    *(("shared/octavo/client", name) for name in ("octavo_gateway", "octavo.dialects.openai", "rich", "llguidance")),
    *(("shared/octavo/dialects", name) for name in ("redis", "octavo.client.asynchronous", "octavo.queue.wire")),
    *(
        ("shared/octavo/dialects/parsing", name)
        for name in ("redis", "pydantic", "octavo.terms.models", "transformers")
    ),
    *(("gateway/octavo_gateway", name) for name in ("octavo_worker.contract.messages", "torch", "redis", "octavo.cli")),
    *((f"{KERNELS}/products", name) for name in ("octavo_worker.contract.step", "redis", "transformers", "numpy")),
    *((f"{KERNELS}/products", f"octavo_kernels.{name}") for name in ("attention", "cache", "sampling", "ops")),
    *((f"{KERNELS}/cache", f"octavo_kernels.{name}") for name in ("attention.plan", "ops", "products.linear")),
    *((f"{KERNELS}/cuda.py", f"octavo_kernels.{name}") for name in ("products.choice", "call", "ops")),
]


def ways_to_import(module: str) -> list[str]:
    parent, _, name = module.rpartition(".")
    return [f"import {module}", f"from {module} import thing", *([f"from {parent} import {name}"] if parent else [])]


def test_an_import_that_a_rule_does_not_name_is_refused() -> None:
    rules = {rule.place: rule for rule in RULES}
    allowed = []
    for place, module in FORBIDDEN:
        package = place.partition("/")[2].replace("/", ".")
        for source in ways_to_import(module):
            if any(rules[place].allows(found, package) for found in imported(source, package)):
                allowed.append(f"{place}: {source}")
    assert not allowed, "\n".join(allowed)


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
    assert Rule("agent", ("redis",)).violations(tmp_path)


def test_relative_imports_are_resolved() -> None:
    assert set(imported("from ..engine import loop", "octavo_worker.agent")) == {"octavo_worker.engine.loop"}


def test_a_name_that_only_begins_alike_is_not_allowed(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "pool.py").write_text("import torchmetrics\nimport json\nimport torch.nn")
    assert Rule("memory", ("torch",)).violations(tmp_path) == ["memory/pool.py imports torchmetrics"]


def test_part_of_an_allowed_package_may_be_refused(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "app.py").write_text("from octavo import cli\nfrom octavo import Client")
    assert Rule("gateway", ("octavo",), ("octavo.cli",)).violations(tmp_path) == ["gateway/app.py imports octavo.cli"]


@pytest.mark.parametrize(
    "package", ["octavo_gateway", "octavo_worker.agent", "octavo_worker.engine", "octavo_worker.memory"]
)
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=STALL_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def write_phi3(folder: Path) -> dict[str, str]:
    """Options of a model whose config.json leaves to transformers what it does not state."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps({"model_type": "phi3", **sizes, **heads}))
    return {"model": str(folder), "load_format": "dummy"}


@pytest.mark.parametrize(
    ("write", "heavy"),
    [
        (lambda _: {"model": "demo"}, {"transformers", "huggingface_hub", "jinja2", *HEAVY}),
        (write_phi3, {"transformers.modeling_utils", *HEAVY}),
    ],
    ids=["all stated", "by transformers"],
)
def test_an_engine_starts_without_what_takes_longer_to_import_than_its_model_to_load(
    tmp_path: Path, write: Callable[[Path], dict[str, str]], heavy: set[str]
) -> None:
    """Seconds of every start, and of every restart after a crash."""
    program = f"""
import sys
import octavo_worker.assembly.engine_process
from octavo_worker.contract.options import ModelOptions
from octavo_worker.assembly.loading import load_runner
load_runner(ModelOptions(device="cpu", num_blocks=9, threads=1, **{write(tmp_path)!r}))
print(sorted({heavy!r} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=STALL_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
