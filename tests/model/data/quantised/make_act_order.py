"""Writes `ct-w4a16-actorder-group*`: columns of a group lie apart. Made by an llm-compressor that still had this order.

    python make_act_order.py FOLDER

Release 0.10 dropped this order and compressed-tensors dropped `weight_g_idx`; checkpoints with it remain. Versions of
the tools are in README.md beside this script.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from common import save_expected
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from llmcompressor.modifiers.quantization import GPTQModifier
from make_compressed_tensors import HEAD, INT4, Form, group, quantise
from safetensors.torch import load_file
from transformers import LlamaConfig


def forms() -> dict[str, Form]:
    grouped = {**INT4, "actorder": "group"}
    return {
        "ct-w4a16-actorder-group": Form([GPTQModifier(config_groups=group(grouped), ignore=HEAD)], calibrated=True),
        "ct-w4a16-actorder-group-asym": Form(
            [GPTQModifier(config_groups=group({**grouped, "symmetric": False}), ignore=HEAD)], calibrated=True
        ),
    }


def decompressed(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the quantised modules by that release of compressed-tensors."""
    described = QuantizationConfig.model_validate(
        LlamaConfig.from_pretrained(folder, trust_remote_code=False).quantization_config
    )
    (scheme,) = described.config_groups.values()
    compressor = BaseCompressor.load_from_registry(described.format, config=described)
    stored = load_file(folder / "model.safetensors")
    names = [key.removesuffix(".weight_packed") for key in stored if key.endswith(".weight_packed")]
    result = {}
    for name in names:
        parts = {key.rpartition(".")[2]: stored[key] for key in stored if key.rpartition(".")[0] == name}
        result[f"{name}.weight"] = compressor.decompress_weight(parts, scheme.weights)
    return result


def main(output: Path) -> None:
    for name, form in forms().items():
        quantise(form, output / name)
        save_expected(output, name, decompressed(output / name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
