"""No code of a model's folder can run: read from the syntax trees of all modules."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sources import ROOT, sources

PACKAGES = ("shared/octavo", "gateway/octavo_gateway", "worker/octavo_worker", "kernels/octavo_kernels")
OTHERS = ("worker/demo_model", "benchmarks", "tests")
LIBRARY = ROOT / "worker/octavo_worker/model/library.py"
LOADERS = ("from_pretrained", "from_config")
UNPICKLE = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
"""Modules that run what they read."""


def trusting_calls(tree: ast.AST) -> Iterator[str]:
    """Calls of transformers' loaders that do not refuse code of a folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADERS:
            given = {word.arg: word.value for word in node.keywords}
            answer = given.get("trust_remote_code")
            if not (isinstance(answer, ast.Constant) and answer.value is False):
                yield f"line {node.lineno}: {node.func.attr} without trust_remote_code=False"


def loaders(tree: ast.AST) -> Iterator[str]:
    """Loaders of transformers, called or passed on, and its classes that choose one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (node.attr in LOADERS or node.attr.startswith("Auto")):
            yield f"line {node.lineno}: {node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "transformers":
            chosen = [alias.name for alias in node.names if alias.name.startswith(("Auto", "pipeline"))]
            yield from (f"line {node.lineno}: {name}" for name in chosen)


def unpicklings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"line {node.lineno}: {name}" for name in modules if name.partition(".")[0] in UNPICKLE)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if f"{node.value.id}.{node.attr}" in ("torch.load", "np.load", "numpy.load", "torch.hub"):
                yield f"line {node.lineno}: {node.value.id}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield f"line {node.value.lineno}: allow_pickle"


def unsafe_commands(tree: ast.AST) -> Iterator[str]:
    """Commands of Python that import from the folder that they are started in, be it a model's, before all others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            words = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
            if "-m" in words and "-P" not in words[: words.index("-m")]:
                yield f"line {node.lineno}: -m without -P"


WORDS = {
    trusting_calls: LOADERS,
    loaders: (*LOADERS, "Auto", "pipeline"),
    unpicklings: (*UNPICKLE, "torch", "np", "numpy", "allow_pickle"),
    unsafe_commands: ("-m",),
}
"""Words, of which a source has one where anything is to be found: to parse all sources takes ten times as long."""


def places_in(source: str, find: Callable[[ast.AST], Iterator[str]]) -> list[str]:
    return list(find(ast.parse(source))) if any(word in source for word in WORDS[find]) else []


@pytest.mark.parametrize(
    ("find", "folders", "excepted"),
    [
        (trusting_calls, (*PACKAGES, *OTHERS), ()),
        (loaders, PACKAGES, (LIBRARY,)),
        (unpicklings, PACKAGES, ()),
        (unsafe_commands, PACKAGES, ()),
    ],
)
def test_no_module_runs_what_a_folder_holds(find, folders: tuple[str, ...], excepted: tuple[Path, ...]) -> None:
    paths = [path for folder in folders for path in sources(folder) if path not in excepted]
    assert len(paths) > 100
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    places = {str(path.relative_to(ROOT)): found for path, text in texts.items() if (found := places_in(text, find))}
    assert places == {}


@pytest.mark.parametrize(
    ("find", "source"),
    [
        (trusting_calls, "AutoConfig.from_pretrained(folder)"),
        (trusting_calls, "AutoModel.from_config(config, trust_remote_code=True)"),
        (trusting_calls, "AutoTokenizer.from_pretrained(folder, trust_remote_code=asked)"),
        (loaders, "from transformers import AutoProcessor"),
        (loaders, "load = GenerationConfig.from_pretrained"),
        (loaders, "transformers.AutoConfig"),
        (unpicklings, "import joblib"),
        (unpicklings, "from pickle import loads"),
        (unpicklings, "torch.load(path, weights_only=True)"),
        (unpicklings, "numpy.lib.npyio.load(path, allow_pickle=True)"),
        (unsafe_commands, "[sys.executable, '-m', 'octavo_worker', '-P']"),
    ],
)
def test_each_form_is_found(find, source: str) -> None:
    assert places_in(source, find)
