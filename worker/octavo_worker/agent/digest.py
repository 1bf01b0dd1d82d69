"""A name for all that decides a model's answers, so that no other model goes on with a job that has tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from octavo_worker.contract.files import GENERATION_CONFIG, tensor_files

_WHOLE_BYTES = 512 << 20  # weights up to this size are read whole, in less than a second
_PIECE = 4096
_READ = 1 << 20
_TEXTS = (  # all that the tokenizer, the chat template and the engine read besides the weights
    "config.json",
    "quantize_config.json",
    "quant_config.json",
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


def files_digest(folder: Path, *, load_format: str, seed: int) -> bytes:
    """Digest of the model in `folder`: its small files whole, and of its weights every header, and the bytes of each
    tensor, whole if the weights have up to 512 MiB, otherwise 4 KiB at its beginning, its middle and its end. Random
    weights are known by their seed. Names of folders and times of files play no part."""
    digest = hashlib.sha256()
    for name in _TEXTS:
        if (folder / name).is_file():
            _add(digest, name.encode(), (folder / name).read_bytes())
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        _add(digest, path.name.encode(), path.read_bytes())
    if load_format == "dummy":
        _add(digest, b"seed", str(seed).encode())
        return digest.digest()
    files = tensor_files(folder)
    is_whole = sum(file.stat().st_size for file in files) <= _WHOLE_BYTES
    for file in files:
        _add(digest, file.name.encode(), str(file.stat().st_size).encode())
        with file.open("rb") as opened:
            pieces = iter(lambda: opened.read(_READ), b"") if is_whole else _samples(opened)
            for piece in pieces:
                digest.update(piece)
    return digest.digest()


def served_digest(
    files: bytes, numerics: str, grammars: str = "", *, max_model_len: int | None = None, sampling: str = ""
) -> str:
    """Digest that a worker announces: of its files, and what it does with them: how it computes (instruction set or
    GPU, types of the weights and the cache), what follows grammars, where texts end if it was told another length
    than the model's own, and the `sampling` that holds where a request says nothing of it."""
    digest, context = hashlib.sha256(), "" if max_model_len is None else f"context {max_model_len}"
    defaults = f"sampling {sampling}" if sampling else ""  # without any: as workers of before, which read none
    _add(digest, files, " ".join(filter(None, (numerics, grammars, context, defaults))).encode())
    return digest.hexdigest()[:32]


def _add(digest: hashlib._Hash, name: bytes, content: bytes) -> None:
    """With lengths, so that nothing can pass from one part to the next."""
    digest.update(b"%d %d " % (len(name), len(content)) + name + content)


def _samples(file: BinaryIO) -> Iterator[bytes]:
    """The header of a safetensors file, and up to three pieces of each tensor, in the order of the file."""
    length = int.from_bytes(file.read(8), "little")
    header = file.read(length)
    yield header
    tensors = (entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__")
    for begin, end in sorted(tensors):
        for offset in sorted({begin, max(begin, (begin + end - _PIECE) // 2), max(begin, end - _PIECE)}):
            file.seek(8 + length + offset)
            yield file.read(min(_PIECE, end - offset))
