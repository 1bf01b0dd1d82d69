"""Findings of `octavo doctor --model` on a model's weights. The worker's packages are looked at, never depended on."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from octavo.terms.problems import in_words

UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class Refusal(Exception):
    """A worker would not serve the model; the message is what it would say."""


def inspect(model: str, quantization: str | None) -> dict[str, Any]:
    """The `Inspection` of a model, as a worker with this environment would load it. Raises `Refusal`."""
    settings, options, files, errors, inspection = (
        importlib.import_module(f"octavo_worker.{name}")
        for name in ("assembly.settings", "contract.options", "contract.files", "model.errors", "assembly.inspection")
    )
    asked = {} if quantization is None else {"quantization": quantization}
    try:
        flags = settings.WorkerSettings(model=model, **asked).model_dump()
        folder = str(files.model_folder(model))
        found: dict[str, Any] = inspection.inspect(options.ModelOptions.of_flags(folder, flags)).to_json()
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        name = "OCTAVO_" + str(problem["loc"][0]).upper().removeprefix("OCTAVO_")
        raise Refusal(in_words(problem, f"{name} or its flag")) from None
    except (errors.ModelError, files.ModelNotFound) as error:
        raise Refusal(str(error)) from error
    return found


def summary(inspection: dict[str, Any]) -> tuple[str, str, str]:
    """State, what was found, and the next step: the rest of a finding."""
    where = f"on {inspection['device']} in {inspection['dtype']}"
    products = inspection["products"]
    advice = inspection["advice"]
    if products is None:
        return "warning" if advice else "ok", f"the model runs on its transformers code, {where}", advice
    found = f"{_amount(inspection['nbytes'])} a token, {where}; {_kept(inspection)}"
    if inspection["read_rate"] is None:
        found += "; caches may hold them"
    else:
        most, rate = inspection["most_tokens_per_s"], inspection["read_rate"]
        found += f"; memory gives {rate / 1e9:,.1f} GB/s, so at most {most:,.1f} tokens/s alone"
    slow = [product["name"] for product in products if product["dequantises"]]
    if not slow:
        return "warning" if advice else "ok", found, advice
    found += f"; no kernel here reads the codes of {'; '.join(dict.fromkeys(slow))}: each step makes dense copies"
    return "warning", found, "; ".join(["it runs, slower than the same model in 16 bits", *filter(None, [advice])])


def _kept(inspection: dict[str, Any]) -> str:
    """Memory for keys and values."""
    found = f"keys and values take {_amount(inspection['kept_bytes'])} a token"
    if inspection["window"]:
        found += f", and {_amount(inspection['window_bytes'])} of each of the last {inspection['window']:,}"
    return found


def products_table(products: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("product", "layers", "form", "size", "kernel"):
        table.add_column(name, justify="right" if name in ("layers", "size") else "left", overflow="fold")
    for product in products:
        kernel = f"{product['kernel']}, of a dense copy" if product["dequantises"] else product["kernel"]
        cells = (product["name"], str(product["layers"]), product["form"], _amount(product["nbytes"]), kernel)
        table.add_row(*map(escape, cells))
    return table


def _amount(nbytes: int) -> str:
    scale, unit = next(((scale, unit) for scale, unit in UNITS if nbytes >= scale), (1.0, "bytes"))
    return f"{nbytes / scale:.3g} {unit}"
