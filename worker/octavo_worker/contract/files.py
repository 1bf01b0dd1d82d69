"""Where a model's files are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
BUNDLED = ("demo", "demo-draft")
GENERATION_CONFIG = "generation_config.json"
_NOT_GGUF = "give the folder of the safetensors checkpoint that they were made from"
_WANTED = ["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"]


class ModelNotFound(ValueError):
    """No such folder, no such model on the hub, or no way to get at it."""


class DamagedFile(ValueError):
    """A file of a model that is not what its name says. The message names it and the next step."""


def model_folder(model: str) -> Path:
    """The folder of a bundled model, of a local folder, or of a hub id, downloaded if need be. Raises
    `ModelNotFound`."""
    if model in BUNDLED:
        return Path(__file__).parents[1] / "bundled" / model
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            if any(path.glob("*.gguf")):
                raise ModelNotFound(f"{path} holds llama.cpp's .gguf weights: {_NOT_GGUF}")
            raise ModelNotFound(f"{path} has no config.json: give the folder of a Hugging Face model")
        return path.resolve()
    if path.is_file():
        what = (
            f"is a file of llama.cpp's weights: {_NOT_GGUF}" if path.suffix == ".gguf" else "is a file: give a folder"
        )
        raise ModelNotFound(f"{path} {what}")
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ModelNotFound(f"no folder {model}: give a folder with a config.json, a hub id like org/name, or demo")
    return _from_hub(model)


def served_name(model: str) -> str:
    """The name that jobs ask for unless told otherwise: the last part of the path or id."""
    return Path(model).expanduser().resolve().name if Path(model).expanduser().is_dir() else model.rpartition("/")[2]


def tensor_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model, there or not, by name. Others beside them are adapters and other
    forms of the same. Raises `DamagedFile`."""
    if (places := indexed(folder)) is not None:
        return sorted(set(places.values()))
    whole = folder / WHOLE
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def indexed(folder: Path) -> dict[str, Path] | None:
    """The file of each tensor by the folder's index. None without one, or if the model lies in one file which the index
    does not name: as in transformers, that goes before it. Raises `DamagedFile`."""
    if not (folder / INDEX).is_file():
        return None
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise DamagedFile(f"{folder / INDEX} has no weight_map of tensors and files; download it again.")
    if (folder / WHOLE).is_file() and WHOLE not in places.values():
        return None
    return {tensor: folder / name for tensor, name in places.items()}


def end_ids(folder: Path) -> tuple[int, ...]:
    """The model's end-of-sequence ids; as in transformers, generation_config.json goes before config.json, and that
    before its text part."""
    config = read_json(folder / "config.json")
    text = config.get("text_config")
    for stated in (read_json(folder / GENERATION_CONFIG), config, text if isinstance(text, dict) else {}):
        ids = stated.get("eos_token_id")
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (ids,)
    return ()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, in whatever form of Unicode; empty if there is none. Raises `DamagedFile`."""
    try:
        value = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as error:
        raise DamagedFile(f"{path} is no JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} is no JSON object; download it again.")
    return value


def read_text(path: Path) -> str:
    """Text without the byte order mark that editors write."""
    return path.read_text(encoding="utf-8-sig")


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=_WANTED))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelNotFound(
            f"cannot get {model} from the Hugging Face hub ({type(error).__name__}): check the name and the network, "
            "or download it and give its folder"
        ) from error
