"""The bookkeeping of one job: whatever the cuts, batches and losses, each sequence reads as if never interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from tokenizers import Tokenizer

import octavo_worker
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Claim
from octavo.terms.messages import Chunk, JobStatus
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo_worker.agent.jobs import MAX_CHUNK_TOKENS, ActiveJob
from octavo_worker.agent.prompts.answer_form import EncodedPrompt
from octavo_worker.contract.messages import EngineSampling, Logprob, RequestStarted, TokenOutput

TOKENIZER = Tokenizer.from_file(str(Path(octavo_worker.__file__).parent / "bundled" / "demo" / "tokenizer.json"))
PROMPT = [70, 71, 72]


def new_job(n: int, *, offset: int = 0, stop: tuple[str, ...] = (), **fields: object) -> ActiveJob:
    request = JobRequest(model="m", prompt=tuple(PROMPT), sampling=SamplingParams(n=n, stop=stop, **fields))
    claim = Claim(Keys().new_job_id(), "token", 1, "tenant", "normal", request, 1, None, offset, False)
    job = ActiveJob(claim)
    job.begin(EncodedPrompt(list(PROMPT)), tokenizer=TOKENIZER, token_bytes=lambda token: b"%d" % token)
    return job


class Server:
    """The content that a stream would have."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.offset = 0

    def append(self, items: list[Append]) -> None:
        for item in items:
            assert item.start == self.offset, "the next token is not the one that the server needs"
            self.chunks.append(item.chunk)
            self.offset += len(item.chunk.token_ids)

    def until(self, offset: int) -> list[Chunk]:
        """The stream as it was when it had `offset` tokens; readers may cut a chunk anywhere."""
        kept: list[Chunk] = []
        for chunk in self.chunks:
            room = min(len(chunk.token_ids), offset - sum(len(c.token_ids) for c in kept))
            if room > 0:
                whole = room == len(chunk.token_ids)
                kept.append(
                    Chunk(
                        index=chunk.index,
                        token_ids=chunk.token_ids[:room],
                        texts=chunk.texts[:room],
                        finish_reason=chunk.finish_reason if whole else None,
                    )
                )
        return kept


def generate(job: ActiveJob, server: Server, tokens: list[list[int]], schedule: list[tuple[int, bool]]) -> None:
    """Feed each sequence its tokens in the order of `schedule`, (sequence, send now?), then the rest."""
    rest = [(index, False) for index, ids in enumerate(tokens) for _ in ids]
    for index, send in schedule + rest:
        sequence = job.sequences[index]
        at = len(sequence.ids)
        if sequence.finish_reason is None and at < len(tokens[index]):
            last = at + 1 == len(tokens[index])
            job.accept(TokenOutput(job.request_id, index, tokens[index][at], finish_reason="length" if last else None))
        if send:
            server.append(job.unsent())
            job.stored = server.offset
    server.append(job.unsent())
    job.stored = server.offset


def by_sequence(chunks: list[Chunk]) -> dict[int, tuple[list[int], list[str], str | None]]:
    read: dict[int, tuple[list[int], list[str], str | None]] = {}
    for chunk in chunks:
        ids, texts, _ = read.get(chunk.index, ([], [], None))
        read[chunk.index] = ([*ids, *chunk.token_ids], [*texts, *chunk.texts], chunk.finish_reason)
    return read


TOKENS = st.lists(st.lists(st.integers(5, 2047), min_size=1, max_size=40), min_size=1, max_size=3)
SCHEDULE = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=80)


@settings(max_examples=examples(150), deadline=None)
@given(tokens=TOKENS, first=SCHEDULE, second=SCHEDULE, cut=st.floats(0, 1), stop_at=st.integers(0, 60))
def test_takeover_at_any_token_continues_each_sequence_exactly(tokens, first, second, cut, stop_at):
    n = len(tokens)
    text = TOKENIZER.decode(tokens[0])
    stop = tuple(s for s in (text[stop_at : stop_at + 4],) if len(s) == 4)
    first = [(index % n, send) for index, send in first]
    second = [(index % n, send) for index, send in second]
    whole, uninterrupted = Server(), new_job(n, stop=stop)
    generate(uninterrupted, whole, tokens, first)
    offset = int(cut * whole.offset)
    taken_over, successor = Server(), new_job(n, stop=stop, offset=offset)
    taken_over.chunks, taken_over.offset = whole.until(offset), offset
    successor.restore(taken_over.chunks)
    generate(successor, taken_over, tokens, second)
    assert by_sequence(taken_over.chunks) == by_sequence(whole.chunks)
    assert successor.is_over
    assert by_sequence(successor.result_chunks()) == by_sequence(whole.chunks)
    assert successor.terminal().usage.completion_tokens == whole.offset


@settings(max_examples=examples(100), deadline=None)
@given(tokens=TOKENS, schedule=SCHEDULE, lost=st.floats(0, 1))
def test_tokens_that_the_server_lost_are_sent_again_in_the_same_places(tokens, schedule, lost):
    job, server = new_job(len(tokens)), Server()
    generate(job, server, tokens, [(index % len(tokens), send) for index, send in schedule])
    offset = int(lost * server.offset)
    after_loss = Server()
    after_loss.chunks, after_loss.offset = server.until(offset), offset
    job.stored = offset
    after_loss.append(job.unsent())
    flat = [(c.index, token) for c in server.chunks for token in c.token_ids]
    assert [(c.index, token) for c in after_loss.chunks for token in c.token_ids] == flat
    assert by_sequence(after_loss.chunks) == by_sequence(server.chunks)


def test_all_sequences_finished_means_nothing_for_the_engine():
    done = Server()
    generate(new_job(2), done, [[50], [60, 61]], [])
    successor = new_job(2, offset=3)
    successor.restore(done.chunks)
    assert successor.is_over
    assert successor.unsent() == []
    assert successor.terminal().status is JobStatus.COMPLETED


def test_takeover_that_only_lacks_prompt_logprobs_asks_for_those_alone():
    done = Server()
    generate(new_job(1), done, [[50, 51]], [])
    successor = new_job(1, offset=2, prompt_logprobs=0)
    successor.restore(done.chunks)
    assert not successor.is_over
    request = successor.engine_request(EngineSampling(seed=1, max_tokens=10, prompt_logprobs=0), deadline=None)
    assert request.sampling.max_tokens == 0
    successor.started(RequestStarted(request.id, 0, [None, Logprob(-1.0), Logprob(-2.0)]))
    assert successor.is_over
    assert successor.terminal().prompt_logprobs is not None


def test_tokens_after_a_stop_string_are_ignored_and_the_engine_is_told_once():
    words = TOKENIZER.encode("one two three four", add_special_tokens=False).ids
    job = new_job(1, stop=("two",))
    told = [job.accept(TokenOutput(job.request_id, 0, token)) for token in words]
    assert told.count(True) == 1
    (item,) = job.unsent()
    assert item.chunk.text == "one "
    assert item.chunk.finish_reason == "stop"
    assert len(item.chunk.token_ids) == told.index(True) + 1


def test_the_engine_tells_two_claims_of_a_job_apart_whatever_the_server_says_of_attempts():
    job = new_job(1)
    again = ActiveJob(replace(job.claim, token="another"))
    assert (again.claim.job_id, again.claim.attempt) == (job.claim.job_id, job.claim.attempt)
    assert again.request_id != job.request_id


def test_a_cancelled_job_sends_nothing_new_but_settles_what_may_be_stored():
    job = new_job(1)
    job.accept(TokenOutput(job.request_id, 0, 50))
    sent = job.unsent()
    job.accept(TokenOutput(job.request_id, 0, 51))
    job.end(JobStatus.CANCELLED)
    assert job.unsent() == sent, "the reply to the first try is not known"
    job.stored = 1
    assert job.unsent() == []
    assert job.terminal().usage.completion_tokens == 1
    assert [chunk.token_ids for chunk in job.result_chunks()] == [(50,)]


def finish(job: ActiveJob, tokens: list[list[int]], scores: list[float]) -> None:
    """Every token of sequence i has the log-probability `scores[i]`."""
    for index, (ids, score) in enumerate(zip(tokens, scores, strict=True)):
        for at, token in enumerate(ids, 1):
            reason = "length" if at == len(ids) else None
            job.accept(TokenOutput(job.request_id, index, token, Logprob(score), reason))


def test_best_of_delivers_the_best_by_mean_logprob_once_all_are_there():
    job, server = new_job(2, best_of=4), Server()
    finish(job, [[50] * 9, [51] * 2], [-0.1, -0.4])
    assert job.unsent() == []
    assert not job.is_over
    tokens = [[50] * 9, [51] * 2, [52] * 3, [53] * 2]
    rest = new_job(2, best_of=4)
    finish(rest, tokens, [-0.1, -0.4, -0.2, -0.3])
    assert rest.is_over
    server.append(rest.unsent())
    assert by_sequence(server.chunks).keys() == {0, 1}
    assert [by_sequence(server.chunks)[i][0] for i in (0, 1)] == [[50] * 9, [52] * 3]
    assert all(chunk.logprobs is None for chunk in server.chunks), "the request asked for no log-probabilities"
    assert rest.terminal().usage.completion_tokens == 12


def test_a_takeover_of_beams_starts_over_and_sends_only_what_is_missing():
    tokens = [[50, 51, 52], [60, 61]]
    whole, job = Server(), new_job(2, beam_width=3)
    finish(job, tokens, [-1.0, -1.0])
    whole.append(job.unsent())
    for offset in range(whole.offset + 1):
        server, successor = Server(), new_job(2, beam_width=3, offset=offset)
        server.chunks, server.offset = whole.until(offset), offset
        successor.restore(server.chunks)
        request = successor.engine_request(EngineSampling(seed=1, max_tokens=10), deadline=None)
        assert [sequence.tokens for sequence in request.sequences] == [[], []]
        assert successor.open_sequences == 3
        finish(successor, tokens, [-1.0, -1.0])
        server.append(successor.unsent())
        assert by_sequence(server.chunks) == by_sequence(whole.chunks)
        assert by_sequence(successor.result_chunks()) == by_sequence(whole.chunks)


def test_beams_that_are_cancelled_after_a_takeover_keep_what_was_published():
    server, job = Server(), new_job(1, beam_width=2)
    finish(job, [[50, 51]], [-1.0])
    server.append(job.unsent())
    successor = new_job(1, beam_width=2, offset=1)
    successor.restore(server.until(1))
    successor.end(JobStatus.CANCELLED)
    assert successor.unsent() == []
    assert successor.terminal().usage.completion_tokens == 1
    assert [chunk.token_ids for chunk in successor.result_chunks()] == [(50,)]


def test_the_reason_of_an_end_comes_with_the_last_part_alone():
    job = new_job(1)
    for place in range(MAX_CHUNK_TOKENS + 9):
        last = place == MAX_CHUNK_TOKENS + 8
        job.accept(TokenOutput(job.request_id, 0, 70, finish_reason="length" if last else None))
    assert [(len(a.chunk.token_ids), a.chunk.finish_reason) for a in job.unsent()] == [
        (MAX_CHUNK_TOKENS, None),
        (9, "length"),
    ]


def test_tokens_of_several_sequences_are_sent_as_such():
    for n, sampling in ((1, {}), (2, {}), (2, {"beam_width": 3})):
        job = new_job(n, max_tokens=1, **sampling)
        for index in range(job.claim.request.sampling.width if not sampling else n):
            job.accept(TokenOutput(job.request_id, index, 50, finish_reason="length"))
        assert {item.several for item in job.unsent()} == {n > 1}


@pytest.mark.parametrize(("reasons", "is_cut"), [(("stop", "stop"), False), (("stop", "length"), True)])
def test_a_job_is_cut_if_a_limit_ended_a_sequence(reasons: tuple[str, str], is_cut: bool) -> None:
    job = new_job(2)
    for index, reason in enumerate(reasons):
        job.accept(TokenOutput(job.request_id, index, 80, finish_reason=reason))
    assert job.is_cut == is_cut
