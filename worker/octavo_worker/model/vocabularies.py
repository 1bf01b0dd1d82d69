"""Comparison of two models' vocabularies: equal ids must mean equal tokens."""

from __future__ import annotations

from pathlib import Path

from octavo_worker.contract.files import read_json
from octavo_worker.model.errors import ModelError

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json")


def check_same_vocabulary(target: Path, draft: Path) -> None:
    """Raises `ModelError` unless every token of either model is one of the other, under the same id. Models without any
    tokenizer, as those with random weights, are taken at their word."""
    files = [name for name in TOKENIZERS if (target / name).is_file() or (draft / name).is_file()]
    if not files:
        return
    name = files[0]
    if not ((target / name).is_file() and (draft / name).is_file()):
        raise _refusal(target, draft, f"only one of them has a {name}, so their vocabularies cannot be compared")
    if name != "tokenizer.json":
        if (target / name).read_bytes() != (draft / name).read_bytes():
            raise _refusal(target, draft, f"their {name} differ")
        return
    ours, theirs = (token_ids(folder / name) for folder in (target, draft))
    others = [token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)]
    if others:
        other = min(others)
        ids = " and ".join("none" if known is None else str(known) for known in (ours.get(other), theirs.get(other)))
        raise _refusal(target, draft, f"their vocabularies differ, as in the id of {other!r}: {ids}")


def token_ids(path: Path) -> dict[str, int]:
    """The id of each token of a tokenizer.json, added ones included."""
    described = read_json(path)
    vocab = described.get("model", {}).get("vocab", {})
    if isinstance(vocab, list):  # Unigram: tokens with their scores, in the order of their ids
        vocab = {token: number for number, (token, *_) in enumerate(vocab)}
    return {**vocab, **{added["content"]: added["id"] for added in described.get("added_tokens", [])}}


def _refusal(target: Path, draft: Path, reason: str) -> ModelError:
    return ModelError(
        f"{draft.name} cannot guess for {target.name}: {reason}; give a draft with the target's tokenizer."
    )
