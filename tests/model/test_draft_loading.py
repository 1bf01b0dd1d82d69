"""A draft model is loaded beside its target, or refused with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig
from watched_draft import watched

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import UNKNOWN, SampleSpec, SequenceStep, StepPlan
from octavo_worker.model import ModelError, UnsupportedModel
from octavo_worker.model.vocabularies import check_same_vocabulary, token_ids
from octavo_worker.runner.paged import PagedRunner

BLOCK_BYTES = 2 * 2 * 2 * 8 * 16 * 4  # K and V, layers, KV heads, head size, tokens, float32
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def folder_of(path: Path, kind: type[PreTrainedConfig] = LlamaConfig, **differences: object) -> str:
    kind(**{"vocab_size": 50, **SIZES, **differences}).save_pretrained(path)
    return str(path)


def load(target: str, draft: str, **options: object) -> PagedRunner:
    fixed = {"load_format": "dummy", "dtype": "float32", "threads": 1, "device": "cpu", "num_blocks": 40}
    runner = load_runner(ModelOptions(model=target, speculate=f"draft:{draft}", **fixed | options))  # type: ignore[arg-type]
    assert isinstance(runner, PagedRunner)
    return runner


def decode(
    tokens: list[int], prompt: list[int], wanted: int, table: Sequence[int] = (1, 2, 3), **sampling: float
) -> SequenceStep:
    params = EngineSampling(seed=1, max_tokens=9, **sampling)
    spec = SampleSpec(params, 0, prompt, tokens)
    rows = tuple(range(1 + wanted))
    asked = (tokens[-1], *(UNKNOWN,) * wanted)
    return SequenceStep(asked, len(prompt) + len(tokens) - 1, table, (spec,) * len(rows), rows, 0)


def drafts_of(runner: PagedRunner, step: SequenceStep) -> list[int]:
    assert runner.draft_model is not None
    (found,) = runner.draft_model.of_plan(StepPlan([step], 1)).sequences
    assert len(found.samples) == len(found.rows) == len(found.tokens)
    assert found.wanted == 0
    return list(found.drafts)


def test_both_have_room_in_the_cache(tmp_path: Path) -> None:
    target, draft = folder_of(tmp_path / "a"), folder_of(tmp_path / "b", num_hidden_layers=1)
    options = {"num_blocks": None, "kv_cache_bytes": 30 * BLOCK_BYTES, "host_cache_bytes": 15 * BLOCK_BYTES}
    runner = load(target, draft, **options)
    assert (runner.num_blocks, runner.num_host_blocks) == (20, 11)


def test_a_draft_of_another_width_says_only_what_both_know(tmp_path: Path) -> None:
    """Rows of padding differ between models of one vocabulary."""
    target = folder_of(tmp_path / "a")
    for width in (44, 50, 64):
        runner = load(target, folder_of(tmp_path / str(width), vocab_size=width))
        for temperature in (0.0, 5.0):
            found = [
                drafts_of(runner, decode([49, 48, 3 + n], [47, 2, 3], 4, temperature=temperature)) for n in range(6)
            ]
            assert {len(drafts) for drafts in found} == {4}
            assert max(map(max, found)) < min(width, 50)


@pytest.mark.parametrize("way", ["copies", "swap_out"])
def test_computed_blocks_go_where_the_target_moves_them(way: str, tmp_path: Path) -> None:
    target, draft = folder_of(tmp_path / "a"), folder_of(tmp_path / "b", num_hidden_layers=1)
    runner = load(target, draft, host_cache_bytes=1 << 20)
    prompt, said = [7, 30, 2, 41, 9] * 3, [5, 6, 11, 12]
    drafts_of(runner, decode(said, prompt, 2))
    assert runner.draft_model is not None
    longer = [*said, 17]
    expected = drafts_of(load(target, draft), decode(longer, prompt, 4))
    host = runner.first_host_block + 1
    if way == "copies":
        moves = [{"copies": [(1, 8), (2, 9)]}]
    else:
        moves = [{"swap_out": [(1, host), (2, host + 1)]}, {"swap_in": [(host, 8), (host + 1, 9)]}]
    for move in moves:
        runner.draft_model.of_plan(StepPlan([], 0, **move))
    cache = runner.draft_model._kv_cache.view(torch.int32)
    assert torch.equal(cache[[8, 9]], cache[[1, 2]])
    with watched(runner) as computed:
        assert drafts_of(runner, decode(longer, prompt, 4, table=(8, 9))) == expected
    assert computed == [1, 1, 1, 1]


def test_a_sequence_that_missed_much_keeps_no_other_from_drafting(tmp_path: Path) -> None:
    runner = load(folder_of(tmp_path / "a"), folder_of(tmp_path / "b"), token_budget=16)
    assert runner.draft_model is not None
    steps = [decode([3], [1 + i % 40 for i in range(70)], 3, table=range(10, 20)), decode([3], [5, 6], 3)]
    lengths = []
    while not lengths or not lengths[-1][0]:
        found = runner.draft_model.of_plan(StepPlan(steps, 2)).sequences
        lengths.append([len(step.drafts) for step in found])
    assert lengths == [[0, 3]] * 4 + [[3, 3]]


def test_beyond_its_context_a_draft_says_nothing(tmp_path: Path) -> None:
    target, draft = folder_of(tmp_path / "a"), folder_of(tmp_path / "b", max_position_embeddings=20)
    runner = load(target, draft)
    lengths = [len(drafts_of(runner, decode([4] * said, [5, 6], 3))) for said in (1, 15, 16, 30)]
    assert lengths == [3, 3, 0, 0]


def test_a_draft_that_sees_more_than_is_kept_is_refused(tmp_path: Path) -> None:
    target = folder_of(tmp_path / "a", MistralConfig, sliding_window=24)
    with pytest.raises(UnsupportedModel, match="sees more than the 24 tokens of the target's sliding window"):
        load(target, folder_of(tmp_path / "b"))
    load(target, folder_of(tmp_path / "c", MistralConfig, sliding_window=16))


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        ("./no-such-folder", r"--speculate draft:\./no-such-folder: no folder \./no-such-folder"),
        ("{empty}", r"--speculate draft:.*has no config\.json"),
        (
            "{other}",
            r"other cannot guess for demo: their vocabularies differ, as in the id of 'the': \d+ and none; give",
        ),
        ("{bare}", r"bare cannot guess for demo: only one of them has a tokenizer\.json"),
    ],
)
def test_what_cannot_guess_is_refused_with_the_reason(draft: str, reason: str, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("empty", "other", "bare")}
    folders["empty"].mkdir()
    for name in ("other", "bare"):
        shutil.copytree(model_folder("demo"), folders[name])
    tokenizer = folders["other"] / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"the"', '"theirs"'))
    (folders["bare"] / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=reason):
        load("demo", draft.format(**folders), load_format="auto")


def test_vocabularies_are_compared_by_tokens_and_ids(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    described = [
        {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "<s>", "id": 2}]},
        {"model": {"vocab": [["a", -1.0], ["b", -2.0], ["<s>", 0.0]]}},  # Unigram
    ]
    for folder, content in zip((one, other), described, strict=True):
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps(content))
        assert token_ids(folder / "tokenizer.json") == {"a": 0, "b": 1, "<s>": 2}
    check_same_vocabulary(one, other)
    (other / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "<s>": 2}}}))
    for pair in ((one, other), (other, one)):
        with pytest.raises(ModelError, match="in the id of 'b'"):
            check_same_vocabulary(*pair)


def test_other_tokenizers_are_the_same_byte_for_byte_or_not(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    check_same_vocabulary(one, other)
    for folder in (one, other):
        (folder / "tokenizer.model").write_bytes(b"pieces")
    check_same_vocabulary(one, other)
    (other / "tokenizer.model").write_bytes(b"other pieces")
    with pytest.raises(ModelError, match=r"their tokenizer\.model differ"):
        check_same_vocabulary(one, other)
