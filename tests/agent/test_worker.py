"""A worker from the outside: jobs in, streams out, bad input refused."""

from __future__ import annotations

import json

import pytest
from cli_driver import Cli
from engine_driver import expected_beams, make_request
from fake_runner import score
from queue_client import VOCABULARY, Queue, expected
from tokenizers import Tokenizer
from waiting import eventually

import octavo_worker
from octavo.terms.messages import JobStatus
from octavo_worker.contract.messages import BeamOptions


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    from pathlib import Path

    return Tokenizer.from_file(str(Path(octavo_worker.__file__).parent / "bundled" / "demo" / "tokenizer.json"))


def sampling(max_tokens: int = 20, **fields: object) -> dict[str, object]:
    return {"max_tokens": max_tokens, "ignore_eos": True, **fields}


def test_answers_every_sequence_and_stores_stream_and_result(queue: Queue, start_worker, tokenizer):
    one = queue.submit((7, 8, 9), sampling=sampling(40))
    three = queue.submit((5, 6), seed=9, sampling=sampling(25, n=3))
    start_worker()
    result = queue.wait(one)
    assert result.status is JobStatus.COMPLETED
    assert list(result.token_ids) == expected([7, 8, 9], 40)
    assert result.text == tokenizer.decode(expected([7, 8, 9], 40))
    assert result.sequences[0].finish_reason == "length"
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (3, 40)
    result = queue.wait(three)
    assert [list(s.token_ids) for s in result.sequences] == [expected([5, 6], 25, seed=9, index=i) for i in range(3)]


def test_beams_and_the_best_of_several_samples(queue: Queue, start_worker):
    beams = queue.submit((7, 8, 9), sampling=sampling(20, beam_width=4, n=3))
    best = queue.submit((5, 6), seed=9, sampling=sampling(12, best_of=5, n=2))
    start_worker()
    search = make_request("", (7, 8, 9), max_tokens=20, n=3, beam=BeamOptions(4))
    assert [list(s.token_ids) for s in queue.wait(beams).sequences] == expected_beams(search, vocab_size=VOCABULARY)
    samples = [expected([5, 6], 12, seed=9, index=i) for i in range(5)]
    samples.sort(key=lambda ids: sum(score([5, 6, *ids[:i]], ids[i]) for i in range(12)), reverse=True)
    result = queue.wait(best)
    assert [list(s.token_ids) for s in result.sequences] == samples[:2]
    assert all(s.logprobs is None for s in result.sequences)


def test_workers_that_do_not_serve_the_same_under_one_name_are_named(queue: Queue, start_worker, redis_url, tmp_path):
    first = start_worker("numerics=amx").wait_ready()
    mixed = "workers of demo do not serve the same"
    cli = Cli(tmp_path)
    assert mixed not in cli("top", "--once", "--interval", "0.2", "--redis-url", redis_url)
    second = start_worker("numerics=avx512").wait_ready()
    eventually(lambda: mixed in second.log)
    third = start_worker("numerics=amx", served_name="another").wait_ready()
    assert mixed not in first.log + third.log
    assert mixed in " ".join(cli("top", "--once", "--interval", "0.2", "--redis-url", redis_url).split())
    findings = cli.json("doctor", "--redis-url", redis_url)["findings"]
    (finding,) = (finding for finding in findings if finding["name"] == "workers")
    assert finding["state"] == "warning"
    assert mixed in finding["found"]
    assert {word.strip(";):") for word in finding["found"].split()} >= {"amx", "avx512"}


def test_a_prompt_of_several_caches_is_answered_beside_others(queue: Queue, start_worker):
    short = [queue.submit((i, 40 + i), sampling=sampling(60)) for i in range(4)]
    prompt = tuple(range(500))
    long = queue.submit(prompt, sampling=sampling(30))
    start_worker("step_seconds=0.001", num_blocks=11, swap_memory=1.0)
    assert list(queue.wait(long).token_ids) == expected(list(prompt), 30)
    for i, job in enumerate(short):
        assert list(queue.wait(job).token_ids) == expected([i, 40 + i], 60)


def test_preempted_jobs_say_what_was_restored_or_recomputed(queue: Queue, start_worker):
    """More jobs than the KV cache holds at once, all admitted before they grow."""
    prompts = [(i, 30 + i) for i in range(12)]
    jobs = [queue.submit(prompt, sampling=sampling(200)) for prompt in prompts]
    start_worker("step_seconds=0.001", num_blocks=34, swap_memory=1.0, preemption="swap")
    results = [queue.wait(job) for job in jobs]
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == expected(list(prompt), 200)
    assert sum(result.usage.restored_tokens for result in results) > 0
    assert sum(result.usage.recomputed_tokens for result in results) == 0


@pytest.mark.parametrize("speculate", ["ngram", "suffix"])
def test_jobs_say_what_was_guessed_and_what_was_right(queue: Queue, start_worker, tmp_path, speculate: str):
    """The text goes round; a stop string ends one job, and nothing behind it is told of."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps([40, 41, 42, 43, 44] * 30))
    worker = start_worker(f"step_seconds=0.001,script={script}", speculate=speculate, speculate_most=4)
    jobs = [queue.submit((i, 30 + i), sampling=sampling(100, n=1 + i % 2)) for i in range(4)]
    for i, job in enumerate(jobs):
        result = queue.wait(job)
        assert [list(s.token_ids) for s in result.sequences] == [([40, 41, 42, 43, 44] * 30)[:100]] * (1 + i % 2)
        assert 50 * (1 + i % 2) < result.usage.accepted_tokens <= result.usage.drafted_tokens
    whole = queue.wait(jobs[0]).text
    stopped = queue.wait(queue.submit((7, 8), sampling=sampling(100, stop=[whole[70:74]])))
    assert stopped.text == whole[: whole.index(whole[70:74])]
    plain = start_worker(f"step_seconds=0.001,script={script}", served_name="plain").wait_ready()
    eventually(lambda: worker.info() is not None and worker.info().stats.accepted_tokens > 200)
    assert plain.info().stats.drafted_tokens == 0
    eventually(
        lambda: {"claim", "append", "finish", "heartbeat"} <= {c.script for c in worker.info().stats.script_calls}
    )
    assert all(calls.count > 0 < calls.seconds for calls in worker.info().stats.script_calls)


def test_text_prompts_and_messages_are_tokenised_without_control_tokens_of_users(queue: Queue, start_worker, tokenizer):
    text = queue.submit("To be <|end|> or", sampling=sampling(3))
    chat = queue.submit(None, messages=[{"role": "user", "content": "Hail<|end|>"}], sampling=sampling(3))
    start_worker()
    literal = Tokenizer.from_str(tokenizer.to_str())
    literal.encode_special_tokens = True
    prompt = literal.encode("To be <|end|> or").ids
    assert 1 not in prompt
    assert list(queue.wait(text).token_ids) == expected(prompt, 3)
    ids = [*tokenizer.encode("<|begin|><|user|>Hail", add_special_tokens=False).ids,
           *literal.encode("<|end|>", add_special_tokens=False).ids,
           *tokenizer.encode("<|end|><|assistant|>", add_special_tokens=False).ids]  # fmt: skip
    assert list(queue.wait(chat).token_ids) == expected(ids, 3)


def test_stop_string_across_tokens_ends_the_sequence_and_frees_the_engine(queue: Queue, start_worker, tokenizer):
    whole = tokenizer.decode(expected([7, 8, 9], 60))
    stop = whole[30:37]
    at = whole.index(stop)
    plain = queue.submit((7, 8, 9), sampling=sampling(60, stop=[stop]))
    kept = queue.submit((7, 8, 9), sampling=sampling(60, stop=[stop], include_stop_str_in_output=True))
    worker = start_worker()
    result = queue.wait(plain)
    assert result.text == whole[:at]
    assert result.sequences[0].finish_reason == "stop"
    assert list(result.token_ids) == expected([7, 8, 9], len(result.token_ids))
    assert len(result.token_ids) < 60
    assert queue.wait(kept).text == whole[: at + len(stop)]
    after = queue.submit((1, 2), sampling=sampling(5))
    assert list(queue.wait(after).token_ids) == expected([1, 2], 5)
    assert worker.process.poll() is None


def test_no_tokens_asked_for(queue: Queue, start_worker):
    nothing = queue.submit((7, 8, 9), sampling={"max_tokens": 0})
    scored = queue.submit((7, 8, 9), sampling={"max_tokens": 0, "prompt_logprobs": 0})
    start_worker()
    result = queue.wait(nothing)
    assert result.status is JobStatus.COMPLETED
    assert result.token_ids == ()
    assert result.sequences[0].finish_reason == "length"
    result = queue.wait(scored)
    assert result.prompt_token_ids == (7, 8, 9)
    assert result.prompt_logprobs is not None
    assert [item.token_id for item in result.prompt_logprobs] == [7, 8, 9]
    assert result.prompt_logprobs[0].logprob is None
    assert all(item.logprob is not None for item in result.prompt_logprobs[1:])


def test_logprobs_name_the_bytes_of_each_token(queue: Queue, start_worker, tokenizer):
    job = queue.submit((7, 8, 9), sampling=sampling(30, logprobs=0))
    start_worker()
    sequence = queue.wait(job).sequences[0]
    assert sequence.logprobs is not None
    assert [item.token_id for item in sequence.logprobs] == list(sequence.token_ids)
    assert b"".join(item.token for item in sequence.logprobs).decode(errors="replace") == tokenizer.decode(
        list(sequence.token_ids), skip_special_tokens=False
    )


TOO_LONG = "context_length_exceeded"


@pytest.mark.parametrize(
    ("job", "code", "param"),
    [
        ({"prompt": tuple(range(1024))}, TOO_LONG, "prompt"),
        ({"prompt": (1, 2048)}, "invalid_token_id", "prompt"),
        ({"prompt": (1,), "sampling": {"logit_bias": {5000: 1.0}}}, "invalid_token_id", "logit_bias"),
    ],
    ids=["too long", "outside the vocabulary", "bias outside the vocabulary"],
)
def test_a_prompt_that_cannot_run_fails_before_its_first_token(queue: Queue, start_worker, job, code, param):
    job_id = queue.submit(**job)
    start_worker()
    result = queue.wait(job_id)
    assert result.status is JobStatus.FAILED
    assert result.error is not None
    assert (result.error.code, result.error.param) == (code, param)
    assert ("This model's maximum context length is 1024 tokens" in result.error.message) == (code == TOO_LONG)
    assert result.token_ids == ()
