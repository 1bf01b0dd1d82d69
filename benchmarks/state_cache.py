"""Prefix hits of a model with recurrent states beside those of one with keys and values alone.

    python benchmarks/state_cache.py [--slots 192] [--turns 8] [--out FILE.json]

Both are tiny, with random weights, on a CPU: scheduler, memory and runner are the engine's own, and hits do not depend
on sizes. First 64 prompts of 3,000 tokens and a shift. The first 2,048 tokens and the shift are common to them, so the
place where they part is moved over the blocks. They come all at once, or one after the other. Then 16 chats, each turn
of which goes on from the one before: its prompt holds all answers, or, with thinking, of each only what was said behind
the thought, as chat templates cut thoughts. A row says how many tokens of prompts were found by each model.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.report import report, write
from octavo_worker.contract.messages import AddRequest, EngineSampling, SequenceInput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.process import scheduler_for

VOCABULARY = 997
LENGTH, COMMON = 3_000, 2_048
PROMPTS, CHATS = 64, 16
SHIFTS = (0, 7, 100, 1_000)
SYSTEM, QUESTION, THOUGHT, ANSWER = 300, 60, 90, 110  # tokens
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 8_192,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": None,
}
KEYS_ALONE = TINY | {"model_type": "qwen3", "num_hidden_layers": 1, "rope_theta": 1e6, "attention_bias": False}
WITH_STATES = TINY | {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM"}


class Engine:
    """A model, and a scheduler with empty caches. `found` and `asked` are tokens of prompts so far, `missed` those
    whose keys were there but whose state was not."""

    def __init__(self, runner: ModelRunner, options: ModelOptions) -> None:
        self._scheduler = scheduler_for(runner, options)
        self._pipeline = Pipeline(runner, self._scheduler)
        self._sent = 0
        self.found = self.asked = 0

    @property
    def missed(self) -> int:
        return self._scheduler.stats().stateless_tokens

    def answer(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """Answers of `new` tokens to prompts that arrive at once."""
        answers: dict[str, list[int]] = {}
        for prompt in prompts:
            name, self._sent = str(self._sent), self._sent + 1
            answers[name] = []
            self.asked += len(prompt)
            sampling = EngineSampling(seed=self._sent, max_tokens=new, temperature=1.0)
            self._scheduler.add(AddRequest(name, array("I", prompt), [SequenceInput(0)], sampling))
        while self._scheduler.has_requests or not self._pipeline.is_empty:
            self._pipeline.advance()
            output = self._scheduler.take_output()
            self.found += sum(started.cached_tokens for started in output.started)
            for token in output.tokens:
                answers[token.id].append(token.token)
        self._scheduler.check_integrity()
        return list(answers.values())


def tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(count)]


def parting(engine: Engine, shift: int, *, at_once: bool) -> None:
    chance = random.Random(shift)
    common = tokens(chance, shift + COMMON)
    prompts = [common + tokens(chance, LENGTH - COMMON) for _ in range(PROMPTS)]
    for batch in [prompts] if at_once else [[prompt] for prompt in prompts]:
        engine.answer(batch, 2)


def chats(engine: Engine, turns: int, *, thinks: bool) -> None:
    """Chats of some tenants at a time: all of them ask, are answered, and ask again."""
    chance = random.Random(turns)
    system = tokens(chance, SYSTEM)
    histories = [list(system) for _ in range(CHATS)]
    for _ in range(turns):
        for history in histories:
            history += tokens(chance, QUESTION + chance.randrange(QUESTION))
        said = engine.answer(histories, THOUGHT + ANSWER)
        for history, answer in zip(histories, said, strict=True):
            history += answer[THOUGHT:] if thinks else answer


def scenes(turns: int) -> Iterator[tuple[str, Callable[[Engine], None]]]:
    for shift in SHIFTS:
        yield f"64 prompts at once, shift {shift}", lambda engine, shift=shift: parting(engine, shift, at_once=True)
        yield f"64 prompts in turn, shift {shift}", lambda engine, shift=shift: parting(engine, shift, at_once=False)
    yield f"chats of {turns} turns", lambda engine: chats(engine, turns, thinks=False)
    yield f"chats of {turns} turns with thinking", lambda engine: chats(engine, turns, thinks=True)


def load(name: str, config: dict[str, Any], folder: Path, slots: int) -> tuple[ModelRunner, ModelOptions]:
    target = folder / name
    target.mkdir()
    config = config | {"architectures": [ARCHITECTURES[config["model_type"]]], "dtype": "bfloat16"}
    (target / "config.json").write_text(json.dumps(config))
    options = ModelOptions(
        model=str(target), load_format="dummy", device="cpu", num_blocks=16_384, max_model_len=8_192, max_running=64,
        state_slots=slots,
    )  # fmt: skip
    return load_runner(options), options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=192, help="states that are kept, running ones and snapshots")
    parser.add_argument("--turns", type=int, default=8, help="turns of a chat")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        keys_alone = load("keys", KEYS_ALONE, Path(folder), arguments.slots)
        with_states = load("states", WITH_STATES, Path(folder), arguments.slots)
    for name, play in scenes(arguments.turns):
        keys, states = Engine(*keys_alone), Engine(*with_states)
        play(keys)
        play(states)
        rows.append(
            {
                "prompts": name,
                "tokens": keys.asked,
                "found_keys_alone": keys.found,
                "found_with_states": states.found,
                "without_a_state": states.missed,
                "share": round(states.found / keys.found, 4),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        if arguments.out is not None:
            write(report("state-cache", rows, slots=arguments.slots, turns=arguments.turns), arguments.out)


if __name__ == "__main__":
    main()
