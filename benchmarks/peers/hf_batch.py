"""transformers' continuous batching. usage: hf_batch.py MODEL_DIR THREADS"""

from __future__ import annotations

import itertools
import sys

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from octavo_worker.bench.workloads import Work
from peers.base import serve, timed

PAGE = 256

torch.set_num_threads(int(sys.argv[2]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, trust_remote_code=False).eval()
config = GenerationConfig(max_new_tokens=256, do_sample=False, eos_token_id=-1, pad_token_id=0)
batching = ContinuousBatchingConfig(page_size=PAGE, num_blocks=98, max_batch_tokens=2048, allow_block_sharing=False)
context = model.continuous_batching_context_manager(
    generation_config=config, continuous_batching_config=batching, warmup=True
)

with torch.no_grad(), context as manager:
    rounds = itertools.count()

    def generate(work: list[Work]) -> int:
        number_of_run = next(rounds)
        for number, w in enumerate(work):
            manager.add_request(
                w.prompt, request_id=f"r{number_of_run}_{number}", max_new_tokens=w.max_tokens, eos_token_id=-1
            )
        generated = done = 0
        while done < len(work):
            result = manager.get_result(timeout=5)
            if result is None:
                if not manager.is_running():
                    raise SystemExit("the continuous batching manager stopped")
                continue
            if result.is_finished():
                done += 1
                generated += len(result.generated_tokens)
        return generated

    serve(timed(generate), model.config.vocab_size)
