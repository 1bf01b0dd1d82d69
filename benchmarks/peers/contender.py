"""A contender: an engine, the form of its weights, and the number of its ranks, as one name."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from octavo_worker.bench.shapes import SHAPES
from octavo_worker.contract.options import ModelOptions

FORMS = ("", "w4a16", "fp8", "fp8blocks", "int8", "mxfp4")
STATED: dict[str, dict[str, Any]] = {
    "w4a16": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*mlp.gate$"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}}},
    },
    "fp8blocks": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    },
    "mxfp4": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"
        ],
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Contender:
    """`program` octavo or vllm; `form` empty for weights in 16 bits."""

    program: str
    form: str
    ranks: int

    @classmethod
    def of(cls, name: str) -> Self:
        """From `octavo`, `vllm-fp8`, `octavo-w4a16@2`. Raises ValueError for other names."""
        found = re.fullmatch(r"(octavo|vllm)(?:-(\w+))?(?:@([1-9]\d*))?", name)
        if found is None or (found[2] or "") not in FORMS:
            raise ValueError(
                f"unknown engine {name!r}: give octavo or vllm, behind a dash one of {', '.join(FORMS[1:])}, and "
                "behind an @ the number of ranks"
            )
        return cls(found[1], found[2] or "", int(found[3] or 1))

    @property
    def name(self) -> str:
        """With neither the form nor the ranks where they go without saying."""
        return self.program + f"-{self.form}" * bool(self.form) + f"@{self.ranks}" * (self.ranks > 1)

    @property
    def is_ours(self) -> bool:
        return self.program == "octavo"

    def command(self, model: Path, options: argparse.Namespace, temperature: float) -> list[str]:
        """The script that runs it on the model in a folder, and its arguments."""
        load_format = "dummy" if model.name in SHAPES else "auto"
        folder = _stated(model, self.form) if self.form in STATED else model
        if not self.is_ours:
            settings = (folder, load_format, options.max_model_len, options.gpu_memory, options.family, self.ranks)
            more = (options.skew, options.experts, *([self.form] if self.form == "fp8" else []))
            return ["peers/vllm_engine.py", *map(str, settings + more)]
        chosen = ModelOptions(
            model=str(folder),
            load_format=load_format,
            device=options.device,
            max_model_len=options.max_model_len,
            gpu_memory=options.gpu_memory,
            host_cache_bytes=round(options.swap_memory * 2**30),
            quantization=self.form if self.form in ("fp8", "int8") else "auto",
            tensor_parallel=self.ranks,
            experts=options.experts if self.ranks > 1 else "auto",
        )
        return ["peers/octavo_engine.py", chosen.to_json(), options.family, str(temperature), str(options.skew)]


def _stated(model: Path, form: str) -> Path:
    """A folder beside `model` whose config states weights in this form."""
    config = json.loads((model / "config.json").read_text())
    target = model.parent / form / model.name
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": STATED[form]}, indent=1))
    return target
