"""Cost in quality of another form of a model: its next-token distributions beside those of a reference, on one text.

The measure is the Kullback-Leibler divergence from the reference, over the whole vocabulary. It shows a wrong zero
point or a broken kernel at once, where perplexity hardly moves.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from tokenizers import Tokenizer
from torch import Tensor

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.files import read_json, read_text
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.state import StateMove
from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import Batch, Paging, ragged_batch

BLOCK = 16
ROWS = 256
"""Rows of logits that are compared at a time: in float64 those of a vocabulary of 128,000 take 0.25 GB."""

Window = list[int]
"""A beginning of a text of its own, of which every token but the first is scored."""


class Mismatch(ValueError):
    """Two models that have no distributions over the same tokens, or a text that is too short."""


class Loaded:
    """A model through the loading path of a worker. Its logits are read directly, not through the scheduler; the cache
    has room for `sequences` of `context` tokens."""

    def __init__(self, options: ModelOptions, sequences: int, context: int) -> None:
        gc.collect()  # the model before this one
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self._blocks = -(-context // BLOCK)
        sizes = {"block_size": BLOCK, "num_blocks": sequences * self._blocks + 1, "max_model_len": context}
        most = {"token_budget": max(sequences, context), "max_running": sequences}
        self._runner = load_runner(msgspec.structs.replace(options, **sizes, **most, cuda_graphs=False))

    @property
    def numerics(self) -> str:
        return self._runner.numerics

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    @torch.inference_mode()
    def logits(self, window: Window) -> Tensor:
        """Logits of what follows each token of a window but its last: `[tokens - 1, vocab]`, in the type in which the
        model gives them."""
        return self._forward([window[:-1]], 0)

    @torch.inference_mode()
    def sample(self, begin: int, banned: Sequence[int], count: int, length: int, seed: int) -> list[Window]:
        """`count` windows of `length` tokens after `begin`, drawn from the model's own distributions without `banned`
        tokens."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.full((count,), begin)]
        for at in range(length):
            logits = self._forward(drawn[-1][:, None].tolist(), at).double().cpu()
            logits[:, banned] = -torch.inf
            drawn.append(torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0])
        return [list(map(int, window)) for window in torch.stack(drawn, dim=1)]

    def _forward(self, tokens: list[list[int]], start: int) -> Tensor:
        runner, n = self._runner, self._blocks
        tables = [list(range(1 + place * n, 1 + (place + 1) * n)) for place in range(len(tokens))]
        moves = [StateMove(place if start else 0, place) for place in range(1, 1 + len(tokens))]
        windows = [self._window_table(place, len(tokens)) for place in range(len(tokens))]
        each = zip(tokens, tables, moves, windows, strict=True)
        steps = [SequenceStep(new, start, table, state=move, window_table=more) for new, table, move, more in each]
        made, device = ragged_batch(steps, runner.block_size, runner.vocab_size), runner.model.device
        names = ("token_ids", "positions", "slots", "block_tables", "context_lens", "query_start")
        batch = Batch(**{name: getattr(made, name).to(device) for name in names}, moves=made.moves)
        if made.windows is not None:
            batch.windows = Paging(made.windows.block_tables.to(device), made.windows.slots.to(device))
        return runner.model.logits(runner.model.forward(batch, None))

    def _window_table(self, place: int, sequences: int) -> list[int]:
        """Blocks of one of some sequences in layers with a window, where these have blocks of their own: an equal part,
        in turn. It holds a window at least, and all of a text that is computed at once."""
        windows = self._runner.windows
        if windows is None:
            return []
        each = (windows.num_blocks - 1) // sequences
        return [1 + place * each + at % each for at in range(self._blocks)]


@dataclass
class Divergence:
    """Divergence of a model from its reference, summed over the tokens scored so far."""

    tokens: int = 0
    nats: float = 0.0
    same_top: int = 0
    surprise: float = 0.0  # of the text, in nats
    reference_surprise: float = 0.0

    def add(self, logits: Tensor, reference: Tensor, targets: Sequence[int]) -> None:
        """`logits` and those of the `reference` `[tokens, vocab]`, and the tokens that came."""
        for rows in torch.arange(len(targets)).split(ROWS):
            ours = logits[rows].double().log_softmax(-1)
            theirs = reference[rows].to(ours.device).double().log_softmax(-1)
            came = torch.tensor(targets)[rows][:, None].to(ours.device)
            possible = theirs > -torch.inf
            self.nats += torch.where(possible, theirs.exp() * (theirs - ours), 0.0).sum().item()
            self.same_top += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
            self.surprise -= ours.gather(1, came).sum().item()
            self.reference_surprise -= theirs.gather(1, came).sum().item()
        self.tokens += len(targets)

    def to_json(self) -> dict[str, Any]:
        mean = torch.tensor([self.surprise, self.reference_surprise], dtype=torch.float64) / self.tokens
        ours, theirs = mean.exp().tolist()
        return {
            "tokens": self.tokens,
            "kl_nats": float(f"{self.nats / self.tokens:.3g}"),
            "same_top": round(self.same_top / self.tokens, 4),
            "perplexity": round(ours, 4),
            "reference_perplexity": round(theirs, 4),
        }


@dataclass(frozen=True)
class Reference:
    """The windows of a text and what the reference model says of them. Logits lie in the memory of the host, so that
    the two models need not be on the device together."""

    windows: list[Window]
    logits: list[Tensor]
    numerics: str

    @classmethod
    def of(cls, options: ModelOptions, windows: list[Window] | None, tokens: int, context: int) -> Reference:
        """Without `windows` the model samples them itself: as many as hold `tokens`, of `context` each."""
        count = max(1, tokens // context)
        model = Loaded(options, count if windows is None else 1, context)
        if windows is None:
            begin, ends = _special_tokens(Path(options.model))
            windows = model.sample(begin, [end for end in ends if end < model.vocab_size], count, context, seed=0)
        return cls(windows, [model.logits(window).cpu() for window in windows], model.numerics)

    def beside(self, options: ModelOptions) -> tuple[Divergence, str]:
        """How far another model is away, and its numerics. Raises `Mismatch`."""
        model = Loaded(options, 1, len(self.windows[0]) - 1)
        if model.vocab_size != self.logits[0].shape[1]:
            sizes = f"{model.vocab_size} and {self.logits[0].shape[1]}"
            raise Mismatch(f"the models have vocabularies of {sizes} tokens; compare two forms of one model")
        divergence = Divergence()
        for window, reference in zip(self.windows, self.logits, strict=True):
            divergence.add(model.logits(window), reference, window[1:])
        return divergence, model.numerics


def windows_of(text: str, folders: Sequence[Path], tokens: int, context: int) -> list[Window]:
    """The beginning of a text as the tokenizers in `folders` read it: windows with `context` tokens to score, about
    `tokens` in all, each behind the token that begins every text, if there is one. Raises `Mismatch` for tokenizers
    that differ."""
    if missing := [folder for folder in folders if not (folder / "tokenizer.json").is_file()]:
        raise Mismatch(f"{missing[0]} has no tokenizer.json to read --text with; without --text the model samples one")
    first, *others = (Tokenizer.from_str(read_text(folder / "tokenizer.json")) for folder in folders)
    ids: list[int] = first.encode(text, add_special_tokens=False).ids
    if any(other.encode(text, add_special_tokens=False).ids != ids for other in others):
        raise Mismatch("the tokenizers of the two models read the text differently; compare two forms of one model")
    begin: list[int] = first.encode("").ids[:1]
    size = context + 1 - len(begin)
    starts = range(0, len(ids) - size + 1, context)[: max(1, tokens // context)]
    if not starts:
        raise Mismatch(f"the text has {len(ids)} tokens, fewer than the {size} of a window; give a longer one")
    return [[*begin, *ids[at : at + size]] for at in starts]


def _special_tokens(folder: Path) -> tuple[int, list[int]]:
    """The token that begins a text, and those that end one."""
    stated: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            stated |= read_json(folder / name)
    ends = stated.get("eos_token_id")
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    begin = stated.get("bos_token_id")
    return (begin if begin is not None else (ends or [0])[0]), ends
