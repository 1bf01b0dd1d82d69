"""transformers `generate`, one static left-padded batch. usage: hf_generate.py MODEL_DIR THREADS

One masked padding column more than needed: an explicit mask makes transformers pack grouped heads at decode, which is
faster than its stock path, and a peer should be shown at its best.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM

from octavo_worker.bench.workloads import Work
from peers.base import serve, timed

torch.set_num_threads(int(sys.argv[2]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, trust_remote_code=False).eval()
model.generation_config.eos_token_id = None
model.generation_config.pad_token_id = 0


def generate(work: list[Work]) -> int:
    longest = max(len(w.prompt) for w in work) + 1
    steps = max(w.max_tokens for w in work)
    ids = torch.zeros(len(work), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, w in enumerate(work):
        ids[row, longest - len(w.prompt) :] = torch.tensor(w.prompt)
        mask[row, longest - len(w.prompt) :] = 1
    with torch.inference_mode():
        out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=steps, do_sample=False)
    if out.shape != (len(work), longest + steps):
        raise SystemExit(f"generate stopped early: {tuple(out.shape)}")
    return sum(w.max_tokens for w in work)


serve(timed(generate), model.config.vocab_size)
