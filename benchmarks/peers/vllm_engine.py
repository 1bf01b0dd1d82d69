"""vLLM in this process, as it is set up by default.

usage: vllm_engine.py MODEL_DIR LOAD_FORMAT CONTEXT MEMORY FAMILY RANKS SKEW EXPERTS [fp8]

`EXPERTS`: of a mixture ranks have a part of each expert (`split`, vLLM's default), or some experts each (`whole`).
`fp8`: vLLM makes eight bits of the weights while it loads, with a scale for each matrix.

CUDA graphs, compilation and chunked prefill are as vLLM chooses them; its prefix cache is emptied before every run, as
octavo's engine begins every run with an empty one. MEMORY is the share of the GPU's memory that it may use.

vLLM's engine runs in a process of its own, which is its default, and so does each of its RANKS beyond one. Their
collectives are those that vLLM chooses without multicast, which hosts that are shared out do not allow: `NO_MULTICAST`.
Its fusion of sums with norms needs FlashInfer; the answer says whether that is there.

Random weights are drawn as octavo draws its own: at the limit of its power a GPU's speed depends on the values.

On Hopper vLLM 0.33.0 takes kernels of packages that it may lack, and fails when it takes them first: FlashInfer's for
prompts of the gated delta rule, FlashAttention 4, which is written in CuTe DSL, for the heads of Gemma 4. Where a
package is not there, vLLM's own Triton kernels take the place (`substitutes`), and the answer says so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from octavo_worker.bench.workloads import Work
from peers.base import Ran, refuse, serve, timed
from peers.vllm_weights import draw_weights

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
os.environ.update(NO_MULTICAST)
os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # `draw_weights` travels to the processes of the ranks
try:
    import vllm
    from vllm.inputs import TokensPrompt
except ImportError as error:
    refuse(f"vLLM cannot be imported ({error}): pip install vllm, or name a folder that has it with --vllm-path")

MAX_SEQUENCES = 256


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def substitutes(model_type: str) -> dict[str, str]:
    """Settings that keep a model of this type off packages that are not there."""
    found = {}
    if model_type.startswith(("qwen3_5", "qwen3_next", "olmo_hybrid")) and not has("flashinfer"):
        found["gdn_prefill_backend"] = "triton"
    if model_type.startswith("gemma4") and not has("cutlass"):
        found["attention_backend"] = "TRITON_ATTN"
    return found


def about(ranks: int, instead: dict[str, str]) -> dict[str, Any]:
    """Facts about the engine; for several ranks also the settings that choose their collectives."""
    known = {"vllm": vllm.__version__, "flashinfer": has("flashinfer"), "substitutes": instead}
    return known | ({"ranks": ranks, "environment": NO_MULTICAST} if ranks > 1 else {})


def main() -> None:
    model, load_format, context, memory, family, ranks, skew, experts, *form = sys.argv[1:]
    config = json.loads((Path(model) / "config.json").read_text())
    instead = substitutes(config["model_type"])
    llm = vllm.LLM(
        model=model,
        load_format=load_format,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=int(context),
        max_num_seqs=MAX_SEQUENCES,
        gpu_memory_utilization=float(memory),
        disable_log_stats=True,
        quantization="fp8_per_tensor" if form else None,
        tensor_parallel_size=int(ranks),
        enable_expert_parallel=experts == "whole",
        **instead,
    )
    if load_format == "dummy":
        llm.apply_model(partial(draw_weights, skew=float(skew)))

    def generate(work: list[Work]) -> int:
        prompts = [TokensPrompt(prompt_token_ids=w.prompt) for w in work]
        parameters = [
            vllm.SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=w.max_tokens, detokenize=False)
            for w in work
        ]
        answers = llm.generate(prompts, parameters, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    def run(work: list[Work]) -> Ran:
        llm.reset_prefix_cache()
        return timed(generate)(work)

    serve(run, config["vocab_size"], family, about=about(int(ranks), instead))


if __name__ == "__main__":
    main()
