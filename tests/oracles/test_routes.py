"""The generic decoder and the transformers route compute the same model, token for token and logit for logit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import WhisperConfig

from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.model.transformers_route import TransformersModel
from octavo_worker.runner.paged import PagedRunner

from .conftest import Pair
from .drive import Engine, request
from .test_greedy import prompts
from .zoo import CONTEXT, GENERIC, ROUTED, VOCAB, save


@pytest.mark.full(but=6)
@pytest.mark.parametrize("name", [*GENERIC, "deepseek_v3"])  # whose values are narrower than keys
def test_both_routes_agree(name: str, cpu_pair: Callable[[str], Pair]) -> None:
    pair = cpu_pair(name)
    options = ModelOptions(model=str(pair.folder), device="cpu", dtype="float32", num_blocks=65, threads=1)
    model, max_model_len = load_model(options, decoders=False)
    assert isinstance(model, TransformersModel)
    routed = PagedRunner(model, CacheConfig(65, 16), max_model_len)
    requests = [request(str(i), prompts()[i], logprobs=0, max_tokens=8) for i in (0, 3, 6, 9)]
    theirs, ours = Engine(routed).run(requests), Engine(pair.runner).run(requests)
    assert theirs.tokens == ours.tokens
    for id, sequences in ours.logprobs.items():
        expected = [logprob.logprob for logprob in theirs.logprobs[id][0]]
        assert [logprob.logprob for logprob in sequences[0]] == pytest.approx(expected, abs=1e-4)


ALL_ROWS = {  # its code gives the logits of all tokens, whichever are asked for
    "whisper": WhisperConfig(
        vocab_size=VOCAB,
        d_model=64,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=80,
        encoder_layers=2,
        max_target_positions=CONTEXT,
        is_decoder=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        decoder_start_token_id=0,
    )
}


@pytest.mark.full(but=2)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", [*ROUTED, *ALL_ROWS])
def test_no_request_feels_the_others(name: str, dtype: str, tmp_path: Path) -> None:
    """Alone, together, and taken over in the middle."""
    save(name, tmp_path, ALL_ROWS.get(name))
    options = ModelOptions(
        model=str(tmp_path), device="cpu", dtype=dtype, num_blocks=257, threads=2, max_model_len=CONTEXT
    )
    runner = load_runner(options)
    requests = [request(str(i), prompts()[i], logprobs=0, temperature=1.0, seed=3, max_tokens=16) for i in range(4)]
    together = Engine(runner).run(requests)
    for asked in requests:
        alone = Engine(runner).run([asked])
        assert alone.tokens[asked.id] == together.tokens[asked.id]
        assert alone.logprobs[asked.id] == together.logprobs[asked.id]
        (tokens,) = alone.tokens[asked.id].values()
        resumed = request(asked.id, list(asked.prompt), temperature=1.0, seed=3, max_tokens=16, resumed={0: tokens[:7]})
        assert Engine(runner).run([resumed]).tokens[asked.id] == {0: tokens}
