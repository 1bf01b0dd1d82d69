"""Train the bundled draft of the `demo` model: a smaller one of the same script that learns to say what `demo` says.

    python worker/demo_model/distil.py --data shakespeare.txt --out worker/octavo_worker/bundled/demo-draft

It learns from the distributions of the teacher, not from the text: on texts that the teacher wrote, at the temperatures
that it will meet, and on windows of the plays. A draft is drawn with the target's noise, so what counts is how much the
two distributions have in common, as they are and sharpened to temperature 0.6.
The checkpoint is the last one: what is measured on the teacher's texts that were held back still falls then.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from array import array
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from train import HERE, Segmentation, build_model, learning_rate, save
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest, EngineSampling, SequenceInput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.process import scheduler_for

TEMPERATURES = (0.0, 0.4, 0.6, 0.8, 1.0, 1.0)
"""Temperatures of the teacher's texts, in turns."""
SHARPENED = 0.6
"""The second temperature at which distributions are compared."""


@dataclass(frozen=True)
class Lessons:
    """Windows of tokens, `ids[N, context]`, and the teacher's final features of each."""

    ids: Tensor
    features: Tensor

    def part(self, first: int, end: int) -> Lessons:
        return Lessons(self.ids[first:end], self.features[first:end])


def windows(tokenizer: PreTrainedTokenizerFast, text: str, context: int, rng: random.Random) -> list[list[int]]:
    """The text once as plays and once as conversations, in random order."""
    plays, conversations = Segmentation(tokenizer.backend_tokenizer, text, context).held_out()
    found = [window[:context] for window in plays + conversations]
    rng.shuffle(found)
    return found


def write_texts(beginnings: list[list[int]], args: argparse.Namespace) -> Tensor:
    """The teacher's answers to 16 to 80 tokens of the text, filled up to the context, by octavo itself."""
    options = ModelOptions(model=str(args.teacher), device="cpu", threads=args.threads, max_running=64)
    runner, rng = load_runner(options), random.Random(args.seed)
    scheduler = scheduler_for(runner, options)
    pipeline, texts = Pipeline(runner, scheduler), list[list[int]]()
    for number in range(args.texts):
        prompt = rng.choice(beginnings)[: rng.randint(16, 80)]
        texts.append(list(prompt))
        temperature, new = TEMPERATURES[number % len(TEMPERATURES)], args.context - len(prompt)
        sampling = EngineSampling(seed=number, max_tokens=new, temperature=temperature)
        scheduler.add(AddRequest(str(number), array("I", prompt), [SequenceInput(0)], sampling))
    while pipeline.advance():
        for said in scheduler.take_output().tokens:
            texts[int(said.id)].append(said.token)
    return torch.tensor([text for text in texts if len(text) == args.context])


@torch.inference_mode()
def lessons_of(teacher: LlamaForCausalLM, ids: Tensor) -> Lessons:
    found = []
    for batch in ids.split(8):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(teacher.model(input_ids=batch, use_cache=False).last_hidden_state.bfloat16())
    return Lessons(ids, torch.cat(found))


def divergence(teacher: Tensor, draft: Tensor) -> Tensor:
    """Kullback-Leibler, mean over rows of logits."""
    said = F.log_softmax(teacher, dim=-1)
    return F.kl_div(F.log_softmax(draft, dim=-1), said, log_target=True, reduction="batchmean")


def logits_of(model: LlamaForCausalLM, head: Tensor, lessons: Lessons) -> tuple[Tensor, Tensor]:
    """The teacher's and the draft's, float32, a row for each token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        taught = (lessons.features.flatten(0, 1) @ head.T).float()
        drafted = model(input_ids=lessons.ids, use_cache=False).logits.flatten(0, 1).float()
    return taught, drafted


@torch.inference_mode()
def agreement(model: LlamaForCausalLM, head: Tensor, lessons: Lessons) -> dict[str, float]:
    """Shares of positions: how often both choose the same with equal noise, at some temperatures, and how often the
    draft's most likely token is what the teacher chooses."""
    model.eval()
    generator, same = torch.Generator().manual_seed(1), dict[str, list[Tensor]]()
    for at in range(0, len(lessons.ids), 4):
        taught, drafted = logits_of(model, head, lessons.part(at, at + 4))
        noise = -torch.empty_like(taught).exponential_(generator=generator).log_()
        for temperature in (0.0, 0.6, 1.0):
            pair = [(logits + temperature * noise).argmax(-1) for logits in (taught, drafted)]
            same.setdefault(f"agreement at {temperature}", []).append((pair[0] == pair[1]).float())
            if temperature:
                same.setdefault(f"argmax at {temperature}", []).append((pair[0] == drafted.argmax(-1)).float())
    model.train()
    return {name: round(torch.cat(found).mean().item(), 4) for name, found in same.items()}


def distil(
    teacher: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, text: str, args: argparse.Namespace
) -> tuple[LlamaForCausalLM, list[dict[str, float]]]:
    """The draft, and the curve of what was measured."""
    torch.manual_seed(args.seed)
    rng, began = random.Random(args.seed), time.monotonic()
    read = windows(tokenizer, text, args.context, rng)
    texts = write_texts(read, args)
    print(json.dumps({"texts": len(texts), "seconds": round(time.monotonic() - began)}), flush=True)
    read = read[: args.windows]
    held, head = lessons_of(teacher, texts[: args.held_back]), teacher.lm_head.weight.detach()
    lessons = lessons_of(teacher, torch.cat([texts[args.held_back :], torch.tensor(read)]))

    model = build_model(args, tokenizer.backend_tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay)
    curve, running = list[dict[str, float]](), 0.0
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        chosen = torch.tensor(rng.sample(range(len(lessons.ids)), args.batch))
        taught, drafted = logits_of(model, head, Lessons(lessons.ids[chosen], lessons.features[chosen]))
        loss = divergence(taught, drafted) + divergence(taught / SHARPENED, drafted / SHARPENED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += loss.item()
        if (step + 1) % args.every == 0:
            row = {"step": step + 1, "loss": round(running / args.every, 4), **agreement(model, head, held)}
            row["seconds"] = round(time.monotonic() - began)
            print(json.dumps(row), flush=True)
            curve.append(row)
            running = 0.0
    return model.eval(), curve


def write_card(out: Path, facts: dict[str, object], curve: list[dict[str, float]]) -> None:
    names = [name for name in curve[0] if name != "seconds"]
    shown = [row for row in curve if row is curve[-1] or row["step"] % (4 * curve[0]["step"]) == 0]
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in shown)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    card = (HERE / "draft_card.md").read_text()
    for name, value in facts.items():
        card = card.replace(f"@{name}@", str(value))
    (out / "README.md").write_text(card.replace("@curve@", table))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the plays as plain text")
    parser.add_argument("--teacher", type=Path, default=HERE.parent / "octavo_worker" / "bundled" / "demo")
    parser.add_argument("--out", type=Path, required=True, help="folder for the draft")
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--texts", type=int, default=240, help="texts that the teacher writes")
    parser.add_argument("--windows", type=int, default=400, help="windows of plays and conversations")
    parser.add_argument("--held-back", type=int, default=16, help="of which so many only measure")
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--batch", type=int, default=8, help="windows a step")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--intermediate", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=25, help="steps between measurements")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    teacher = LlamaForCausalLM.from_pretrained(args.teacher, dtype=torch.float32, trust_remote_code=False).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.teacher, trust_remote_code=False)
    started = time.monotonic()
    model, curve = distil(teacher, tokenizer, args.data.read_text(), args)
    seconds = time.monotonic() - started
    model.config.max_position_embeddings = teacher.config.max_position_embeddings
    save(model, tokenizer.backend_tokenizer, args.out)
    flags = {name: value for name, value in vars(args).items() if name not in ("data", "out", "teacher")}
    facts = {
        "parameters": f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}",
        "command": " ".join(f"--{name.replace('_', '-')} {value}" for name, value in flags.items()),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "seconds": round(seconds),
        **flags,
    }
    write_card(args.out, facts, curve)
    print(json.dumps(facts | curve[-1]))


if __name__ == "__main__":
    main()
