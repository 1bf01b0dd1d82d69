"""How a checkpoint stores its matrices, and which kind of `Linear` each of them becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from octavo_worker.contract.files import read_json
from octavo_worker.model.checkpoint.formats.autoround import autoround
from octavo_worker.model.checkpoint.formats.awq import Awq
from octavo_worker.model.checkpoint.formats.base import Format, Matrix, Reader
from octavo_worker.model.checkpoint.formats.compressed_tensors import CompressedTensors
from octavo_worker.model.checkpoint.formats.dense import DenseFormat
from octavo_worker.model.checkpoint.formats.drawn import DrawnFormat
from octavo_worker.model.checkpoint.formats.fbgemm import Fbgemm
from octavo_worker.model.checkpoint.formats.fp8 import Fp8
from octavo_worker.model.checkpoint.formats.gptq import Gptq
from octavo_worker.model.checkpoint.formats.modelopt import ModelOpt
from octavo_worker.model.checkpoint.formats.mxfp4 import Mxfp4
from octavo_worker.model.checkpoint.formats.online import OnlineFormat
from octavo_worker.model.checkpoint.formats.quark import Quark
from octavo_worker.model.checkpoint.formats.stated import stated_quantisation
from octavo_worker.model.checkpoint.formats.stored import Method, QuantisedFormat
from octavo_worker.model.checkpoint.formats.unstated import MLX, check_unstated
from octavo_worker.model.errors import CheckpointError, UnsupportedModel

__all__ = ["DenseFormat", "DrawnFormat", "Format", "Matrix", "OnlineFormat", "QuantisedFormat", "Reader", "format_of"]

METHODS: dict[str, Callable[[Mapping[str, Any]], Method]] = {
    "gptq": Gptq.stated,
    "awq": Awq.stated,
    "compressed-tensors": CompressedTensors.stated,
    "fp8": Fp8.stated,
    "fbgemm_fp8": Fbgemm.stated,
    "modelopt": ModelOpt.stated,
    "mxfp4": Mxfp4.stated,
    "quark": Quark.stated,
    "auto-round": autoround,
}
NAMES = {"modelopt_fp8": "modelopt", "modelopt_fp4": "modelopt", "intel/auto-round": "auto-round"}
"""Other names of these."""
ELSEWHERE = {
    "bitsandbytes": "quantises while it loads: give the checkpoint in 16 bits that it was made from",
    "gguf": "is llama.cpp's: give the safetensors checkpoint that it was made from",
}


def format_of(folder: Path) -> Format:
    """The format of the checkpoint in `folder`. Raises `UnsupportedModel`, naming the form, if no kind of Linear
    computes with it."""
    config = stated_quantisation(folder)
    if config is None:
        check_unstated(folder)
        return DenseFormat()
    method = str(config.get("quant_method", "")).lower()
    method = NAMES.get(method, method)
    if not method and config.keys() & {"bits", "group_size"} and "quantization" in read_json(folder / "config.json"):
        raise UnsupportedModel(f"{folder} {MLX}.")
    if method not in METHODS:
        reason = ELSEWHERE.get(
            method, f"is not loaded: give a checkpoint in one of {', '.join(METHODS)}, or in 16 bits"
        )
        raise UnsupportedModel(f"{folder} is quantised by {method or 'a method without a name'}, which {reason}.")
    try:
        return QuantisedFormat(METHODS[method](config))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the quantization_config of {folder} lacks what {method} needs ({type(error).__name__}: {error}); compare "
            "it with that of a checkpoint that loads."
        ) from error
