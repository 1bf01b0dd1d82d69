"""What a KV cache in 8 bits costs in quality: python benchmarks/lab/kv_quality.py --text shakespeare.txt [--device cuda]

Takes the end of the text, which the bundled model was not trained on (the split of worker/demo_model/train.py), in
windows of the model's context, and measures for float32 and bfloat16, each with its own cache, int8 and fp8:

* perplexity of the windows,
* Kullback-Leibler divergence of the next-token distributions from those of float32 throughout, in nats, and how often
  the most likely token is the same, given the same text,
* greedy continuations of the windows' beginnings to the end of the context: tokens equal to those of float32 at the
  same place, and where the first difference comes. After it two texts go their own ways.

Prints a table and writes benchmarks/results/kv_quality.json, or kv_quality_cuda.json.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.report import report, write
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import Batch, ragged_batch
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.paged import PagedRunner

RESULTS = Path(__file__).parents[1] / "results"
HELD_OUT = 0.05
KINDS = [(dtype, cache) for dtype in ("float32", "bfloat16") for cache in ("auto", "int8", "fp8")]
PROMPT = 32


class Model:
    """One model with one kind of cache, which has room for `windows` sequences of `context` tokens."""

    def __init__(self, folder: Path, dtype: str, cache: str, windows: int, context: int, device: str) -> None:
        self._blocks = -(-context // 16)
        self.runner: PagedRunner | CudaRunner = load_runner(
            ModelOptions(
                model=str(folder), device=device, dtype=dtype, kv_dtype=cache, num_blocks=windows * self._blocks + 1,
                max_model_len=context,
            )
        )  # fmt: skip

    def _logits(self, tokens: list[list[int]], start: int, rows: Tensor | None) -> Tensor:
        steps = [
            SequenceStep(new, start, list(range(1 + i * self._blocks, 1 + (i + 1) * self._blocks)))
            for i, new in enumerate(tokens)
        ]
        model = self.runner.model
        made = ragged_batch(steps, self.runner.block_size, self.runner.vocab_size)
        names = ("token_ids", "positions", "slots", "block_tables", "context_lens", "query_start")
        batch = Batch(**{name: getattr(made, name).to(model.device) for name in names})
        return model.logits(model.forward(batch, None if rows is None else rows.to(model.device))).float().cpu()

    @torch.inference_mode()
    def distributions(self, window: list[int]) -> Tensor:
        """Log-probabilities `[tokens - 1, vocab]` of what follows each token of a window but the last."""
        return self._logits([window[:-1]], 0, None).log_softmax(-1)

    @torch.inference_mode()
    def continuations(self, prompts: list[list[int]], count: int) -> Tensor:
        """Greedy, all at once: `[prompts, count]`."""
        last = torch.arange(1, len(prompts) + 1) * PROMPT - 1
        tokens = [self._logits(prompts, 0, last).argmax(-1)]
        for at in range(PROMPT, PROMPT + count - 1):
            tokens.append(self._logits(tokens[-1][:, None].tolist(), at, None).argmax(-1))
        return torch.stack(tokens, dim=1)


def windows(text: str, tokenizer: Tokenizer, context: int, most: int) -> list[list[int]]:
    """Of the held-out end, each with the token that begins every text."""
    cut = text.index("\n\n", int(len(text) * (1 - HELD_OUT))) + 2
    first, *ids = tokenizer.encode(text[cut:]).ids
    size = context - 1
    return [[first, *ids[at : at + size]] for at in range(0, len(ids) - size, size)][:most]


@dataclass(frozen=True)
class Answers:
    """Of one model, for each window: log-probabilities of all next tokens, and a greedy continuation."""

    distributions: list[Tensor]
    continued: Tensor

    @classmethod
    def of(cls, model: Model, texts: list[list[int]]) -> Answers:
        continued = model.continuations([window[:PROMPT] for window in texts], len(texts[0]) - PROMPT)
        return cls([model.distributions(window) for window in texts], continued)

    def beside(self, truth: Answers, texts: list[list[int]]) -> dict[str, Any]:
        losses, divergences, same = [], [], []
        for window, ours, theirs in zip(texts, self.distributions, truth.distributions, strict=True):
            losses.append(-ours.gather(1, torch.tensor(window[1:])[:, None])[:, 0])
            divergences.append((theirs.double().exp() * (theirs.double() - ours.double())).sum(-1))
            same.append(theirs.argmax(-1) == ours.argmax(-1))
        divergence = torch.cat(divergences)
        equal = self.continued == truth.continued
        until = torch.where(equal.all(-1), equal.shape[1], equal.int().argmin(-1))
        return {
            "perplexity": round(torch.cat(losses).double().mean().exp().item(), 4),
            "kl_mean": float(f"{divergence.mean():.3g}"),
            "kl_max": float(f"{divergence.max():.3g}"),
            "same_top_token": round(torch.cat(same).double().mean().item(), 4),
            "greedy_equal": round(equal.double().mean().item(), 4),
            "greedy_equal_until": int(until.median()),
            "greedy_identical": int(equal.all(-1).sum()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--model", default="demo", help="model folder")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--windows", type=int, default=1000, help="most windows to take")
    arguments = parser.parse_args()
    folder = model_folder(arguments.model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = windows(arguments.text.read_text(), tokenizer, arguments.context, arguments.windows)
    rows: list[dict[str, Any]] = []
    truth: Answers | None = None
    for dtype, cache in KINDS:
        model = Model(folder, dtype, cache, len(texts), arguments.context, arguments.device)
        answers = Answers.of(model, texts)
        truth = truth or answers
        bytes_a_token = model.runner.kv_cache[0].nbytes // model.runner.block_size
        rows.append(
            {
                "dtype": dtype, "kv_dtype": model.runner.kv_dtype, "bytes_a_token": bytes_a_token,
                **answers.beside(truth, texts),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    tokens = {"windows": len(texts), "tokens": arguments.context, "continued": arguments.context - PROMPT}
    name = "kv_quality.json" if arguments.device == "cpu" else "kv_quality_cuda.json"
    write(report("kv quality", rows, text=tokens), RESULTS / name)


if __name__ == "__main__":
    main()
