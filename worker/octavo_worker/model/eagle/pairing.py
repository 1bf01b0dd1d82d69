"""Which models and heads go together."""

from __future__ import annotations

from pathlib import Path

from octavo_worker.contract.cache import common_window
from octavo_worker.model.causal_model import CausalModel
from octavo_worker.model.checkpoint.formats import DenseFormat, format_of
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import CheckpointError, UnsupportedModel
from octavo_worker.model.vocabularies import TOKENIZERS, check_same_vocabulary


def check_pair(target: CausalModel, target_folder: Path, head_folder: Path) -> Decoder:
    """The target, if a head can read its layers and the folder may hold one for it. Raises `ModelError`."""
    if not isinstance(target, Decoder):
        raise UnsupportedModel(
            "heads read the layers of octavo's own decoder, and this model runs on its transformers code; give suffix "
            "or draft:FOLDER."
        )
    window = common_window(target.cache)
    if window:
        raise UnsupportedModel(
            f"heads see all of a sequence, of which this model keeps the {window} tokens of its sliding window; "
            "give suffix."
        )
    if not isinstance(format_of(head_folder), DenseFormat):
        raise UnsupportedModel("the head is quantised; give it in 16 bits.")
    if any(head_folder.glob("*.bin")) and not any(head_folder.glob("*.safetensors")):
        raise CheckpointError(
            f"{head_folder} holds pickled weights (.bin), which can run code when loaded. Convert them once: "
            'safetensors.torch.save_file(torch.load("pytorch_model.bin", weights_only=True), "model.safetensors").'
        )
    if any((head_folder / name).is_file() for name in TOKENIZERS):  # most are published without
        check_same_vocabulary(target_folder, head_folder)
    return target
