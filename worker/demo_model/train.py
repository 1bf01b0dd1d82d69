"""Train the bundled `demo` model: a small Llama on the plays of Shakespeare.

    python worker/demo_model/train.py --data shakespeare.txt --out worker/octavo_worker/bundled/demo

The text is taken two ways: as plays (a window that starts at any line) and as conversations, in which one speech is
the user's turn and the next the assistant's; a system message names the character that answers. Against memorising a
megabyte of text: dropout, weight decay, BPE dropout (Provilkov et al. 2020: every epoch sees other segmentations)
and the choice of the checkpoint by the loss on held-out text.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import re
import time
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BEGIN, END, SYSTEM, USER, ASSISTANT = SPECIAL = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
SEGMENTATIONS = 12
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Speech:
    speaker: str
    words: str


def read_speeches(text: str) -> list[Speech]:
    """Speeches in the order of the plays: a line `NAME:`, then what is said, up to an empty line."""
    found = re.findall(r"^([A-Z][^\n:]{0,40}):\n(.+?)(?=\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return [Speech(speaker, words.strip()) for speaker, words in found]


def train_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    begin = (BEGIN, tokenizer.token_to_id(BEGIN))
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B:1", special_tokens=[begin]
            ),
        ]
    )
    return tokenizer


class Segmentation:
    """One way of cutting the text into tokens, and training windows drawn from it."""

    def __init__(self, tokenizer: Tokenizer, text: str, window: int) -> None:
        self.window = window
        self.begin, self.end, self.system, self.user, self.assistant = (tokenizer.token_to_id(t) for t in SPECIAL)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        self.ids = encoding.ids
        starts = [start for start, _ in encoding.offsets]
        line_starts = (match.end() for match in re.finditer(r"\n", text))
        self.lines = [0, *(bisect_left(starts, at) for at in line_starts)]
        speeches = read_speeches(text)
        self.speakers = [speech.speaker for speech in speeches]
        self.names = self._encode(tokenizer, self.speakers)
        self.words = self._encode(tokenizer, [speech.words for speech in speeches])

    @staticmethod
    def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]

    def play(self, start: int) -> list[int]:
        """A window of the plays: the begin token and the text from token `start` on."""
        return [self.begin, *self.ids[start : start + self.window]]

    def conversation(self, first: int, turns: int, named: bool) -> list[int]:
        """`turns` pairs of speeches from speech `first` on."""
        ids = [self.begin]
        if named:
            ids += [self.system, *self.names[first + 1], self.end]
        for at in range(first, first + 2 * turns, 2):
            ids += [self.user, *self.words[at], self.end, self.assistant, *self.words[at + 1], self.end]
        return ids

    def conversations(self, rng: random.Random) -> list[int]:
        """Random conversations, packed until the window is full."""
        ids: list[int] = []
        while len(ids) <= self.window:
            turns = rng.choice([1, 1, 2, 3])
            first = rng.randrange(len(self.words) - 2 * turns)
            answering = {self.speakers[at] for at in range(first + 1, first + 2 * turns, 2)}
            ids += self.conversation(first, turns, named=len(answering) == 1 and rng.random() < 0.6)
        return ids[: self.window + 1]

    def sample(self, rng: random.Random) -> list[int]:
        if rng.random() < 0.5:
            return self.conversations(rng)
        last = len(self.ids) - self.window
        return self.play(rng.choice(self.lines[: bisect_left(self.lines, last)]))

    def held_out(self) -> tuple[list[list[int]], list[list[int]]]:
        """The whole text once as plays and once as conversations."""
        plays = [self.play(start) for start in range(0, len(self.ids) - self.window, self.window)]
        packed: list[int] = []
        for first in range(0, len(self.words) - 2, 2):
            packed += self.conversation(first, 1, named=True)
        size = self.window + 1
        return plays, [packed[at : at + size] for at in range(0, len(packed) - size, size)]


def build_model(args: argparse.Namespace, tokenizer: Tokenizer) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64,
        num_key_value_heads=args.hidden // 128,
        head_dim=64,
        max_position_embeddings=args.context,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        attention_dropout=args.dropout,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)

    def drop(module: torch.nn.Module, _: object, output: torch.Tensor) -> torch.Tensor:
        return F.dropout(output, args.dropout, training=module.training)

    # Llama itself has no residual dropout: it is added from outside, so the saved model is an ordinary Llama.
    for name, module in model.named_modules():
        if name.endswith(("embed_tokens", "o_proj", "down_proj")):
            module.register_forward_hook(drop)
    return model


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast(batch.device.type, dtype=torch.bfloat16):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.inference_mode()
def evaluate(model: LlamaForCausalLM, rows: list[list[int]], device: str) -> float:
    model.eval()
    losses = [loss_of(model, torch.tensor(rows[at : at + 16], device=device)).item() for at in range(0, len(rows), 16)]
    sizes = [len(rows[at : at + 16]) for at in range(0, len(rows), 16)]
    model.train()
    return sum(x * n for x, n in zip(losses, sizes, strict=True)) / sum(sizes)


def learning_rate(step: int, args: argparse.Namespace) -> float:
    warmup = min(1.0, (step + 1) / args.warmup)
    return args.lr * warmup * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / args.steps)))


def train(args: argparse.Namespace, text: str) -> tuple[LlamaForCausalLM, Tokenizer, list[dict[str, float]]]:
    """The model with the lowest held-out loss, its tokenizer, and the curve."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    cut = text.index("\n\n", int(len(text) * (1 - args.held_out))) + 2
    tokenizer = train_tokenizer(text[:cut], args.vocab)
    plays, conversations = Segmentation(tokenizer, text[cut:], args.context).held_out()
    segmentations = [Segmentation(tokenizer, text[:cut], args.context)]
    tokenizer.model.dropout = args.bpe_dropout
    segmentations += [Segmentation(tokenizer, text[:cut], args.context) for _ in range(SEGMENTATIONS - 1)]
    tokenizer.model.dropout = None

    model = build_model(args, tokenizer).to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=device == "cuda")
    best: dict[str, torch.Tensor] = {}
    curve: list[dict[str, float]] = []
    running, since = torch.zeros((), device=device), 0
    for step in range(args.steps + 1):
        if step % args.every == 0:
            row = {"step": step, "train": round(running.item() / max(since, 1), 4)}
            row |= {"plays": round(evaluate(model, plays, device), 4)}
            row |= {"conversations": round(evaluate(model, conversations, device), 4)}
            row["held_out"] = round((row["plays"] + row["conversations"]) / 2, 4)
            if not curve or row["held_out"] < min(past["held_out"] for past in curve):
                best = copy.deepcopy(model.state_dict())
            curve.append(row)
            running, since = torch.zeros((), device=device), 0
            print(json.dumps(row), flush=True)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        rows = [segmentations[rng.choice([0, rng.randrange(SEGMENTATIONS)])].sample(rng) for _ in range(args.batch)]
        loss = loss_of(model, torch.tensor(rows, device=device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running, since = running + loss.detach(), since + 1
    model.load_state_dict(best)
    return model.eval(), tokenizer, curve


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> PreTrainedTokenizerFast:
    out.mkdir(parents=True, exist_ok=True)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
        octavo_longest_string=24,  # a model of plays ends no string of JSON
    )
    wrapped.chat_template = (HERE / "chat_template.jinja").read_text()
    wrapped.save_pretrained(out)
    model.config.attention_dropout = 0.0
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id, do_sample=True
    )  # fmt: skip
    model.to(torch.bfloat16).save_pretrained(out)
    return wrapped


PROMPTS: list[str | list[dict[str, str]]] = [
    "ROMEO:\n",
    "Once upon a time",
    [{"role": "user", "content": "What is love?"}],
    [
        {"role": "system", "content": "KING RICHARD III"},
        {"role": "user", "content": "The enemy is at the gate, my lord."},
    ],
]


def samples(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> list[tuple[str, str]]:
    torch.manual_seed(seed)
    found = []
    for prompt in PROMPTS:
        if isinstance(prompt, str):
            text, ids = prompt, tokenizer(prompt, return_tensors="pt").input_ids
        else:
            text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        output = model.generate(ids.to(model.device), max_new_tokens=120)
        found.append((text, tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)))
    return found


def longest_copy(sample: str, source: str) -> int:
    """Words in the longest run that a sample shares with the training text: a measure of memorising."""
    words, haystack = sample.split(), f" {' '.join(source.split())} "
    best = 0
    for start in range(len(words)):
        while start + best < len(words) and f" {' '.join(words[start : start + best + 1])} " in haystack:
            best += 1
    return best


def write_card(
    out: Path, facts: dict[str, object], curve: list[dict[str, float]], texts: list[tuple[str, str]]
) -> None:
    shown = curve[:: max(1, len(curve) // 16)]
    table = "\n".join(
        f"| {row['step']:.0f} | {row['train'] or '-'} | {row['plays']} | {row['conversations']} |" for row in shown
    )
    quoted = "\n\n".join(f"```text\n{prompt}⏎{text.rstrip()}\n```" for prompt, text in texts)
    card = (HERE / "card.md").read_text()
    for name, value in facts.items():
        card = card.replace(f"@{name}@", str(value))
    (out / "README.md").write_text(card.replace("@curve@", table).replace("@samples@", quoted))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the plays as plain text")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--steps", type=int, default=1100)
    parser.add_argument("--batch", type=int, default=24, help="windows a step")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--weight-decay", type=float, default=0.5)
    parser.add_argument("--dropout", type=float, default=0.35)
    parser.add_argument("--bpe-dropout", type=float, default=0.2)
    parser.add_argument("--held-out", type=float, default=0.05, help="share of the text, taken from its end")
    parser.add_argument("--every", type=int, default=50, help="steps between measurements of the held-out loss")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    text = args.data.read_text()
    started = time.monotonic()
    model, tokenizer, curve = train(args, text)
    seconds = time.monotonic() - started
    wrapped = save(model, tokenizer, args.out)
    texts = samples(model, wrapped, args.seed)
    flags = {name: value for name, value in vars(args).items() if name not in ("data", "out")}
    best = min(curve, key=lambda row: row["held_out"])
    facts = {
        "parameters": f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}",
        "command": " ".join(f"--{name.replace('_', '-')} {value}" for name, value in flags.items()),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "seconds": round(seconds),
        "best_step": best["step"],
        "best_plays": best["plays"],
        "best_conversations": best["conversations"],
        "longest_copy": max(longest_copy(sample, text) for _, sample in texts),
        **flags,
    }
    write_card(args.out, facts, curve, texts)
    print(json.dumps(facts | {"held_out_loss": best["held_out"]}))


if __name__ == "__main__":
    main()
