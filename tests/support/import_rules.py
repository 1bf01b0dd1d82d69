"""Who may import whom. Read from the syntax trees, so that lazy and type-checking imports count too."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rule:
    """Modules in `folder` (but not in `except_for`) import nothing whose dotted name starts with one of `never`."""

    folder: str
    never: tuple[str, ...]
    except_for: tuple[str, ...] = ()

    def modules(self, root: Path) -> list[Path]:
        excluded = [root / folder for folder in self.except_for]
        found = sorted((root / self.folder).rglob("*.py"))
        return [path for path in found if not any(path.is_relative_to(folder) for folder in excluded)]

    def violations(self, root: Path) -> list[str]:
        return [
            f"{path.relative_to(root)} imports {name}"
            for path in self.modules(root)
            for name in imported(path.read_text(), package_of(path))
            if any(name == module or name.startswith(f"{module}.") for module in self.never)
        ]


def imported(source: str, package: str) -> Iterable[str]:
    """Absolute dotted names of all that a module imports; `from a import b` gives `a` and `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def package_of(path: Path) -> str:
    """The dotted name of the package that a module belongs to: its folders up to the first without `__init__.py`."""
    folder, names = path.parent, []
    while (folder / "__init__.py").exists():
        names.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(names))


WORKER = "worker/octavo_worker"
RULES = [
    Rule("shared/octavo", ("octavo_gateway", "octavo_worker", "octavo_kernels", "torch", "transformers", "fastapi")),
    Rule(
        "shared/octavo",
        ("celery", "typer", "rich"),
        except_for=("shared/octavo/cli", "shared/octavo/celery.py", "shared/octavo/celery"),
    ),
    Rule("gateway/octavo_gateway", ("octavo_worker", "octavo_kernels", "torch", "transformers")),
    Rule(WORKER, ("octavo_gateway", "fastapi"), except_for=(f"{WORKER}/bench",)),
    Rule(f"{WORKER}/agent", ("torch", "transformers", "octavo_kernels")),
    Rule(f"{WORKER}/agent", tuple(f"octavo_worker.{part}" for part in ("memory", "model"))),
    Rule(
        f"{WORKER}/agent",
        tuple(
            f"octavo_worker.engine.{part}" for part in ("scheduler", "loop", "sequence", "waiting", "admission", "plan")
        ),
    ),
    Rule(f"{WORKER}/engine", ("redis", "octavo_worker.agent", "octavo.client", "octavo.connection", "octavo.protocol")),
    Rule(f"{WORKER}/memory", ("torch", "redis", "octavo", "octavo_kernels")),
    Rule(f"{WORKER}/memory", tuple(f"octavo_worker.{part}" for part in ("agent", "engine", "decoding", "model"))),
    Rule(f"{WORKER}/decoding", ("redis", "octavo_worker.agent", "octavo_worker.engine", "octavo_worker.model")),
    Rule(f"{WORKER}/model", ("redis", "octavo_worker.agent", "octavo_worker.memory", "octavo_worker.engine.scheduler")),
    Rule("kernels/octavo_kernels", ("octavo", "octavo_worker", "octavo_gateway", "redis", "transformers")),
]
