"""Requests with grammars on the fake model, and what must come out without any engine."""

from __future__ import annotations

import json
from typing import Any

from engine_driver import make_request, prompt
from fake_model import candidates, masked_out, next_token
from generated_schemas import unchecked
from tokenizers import Tokenizer

from octavo.dialects.grammar.grammars import Grammar
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import AddRequest
from octavo_worker.engine.beams.search import BeamSearch
from octavo_worker.engine.grammar import Compiler, Matcher, Vocabulary
from octavo_worker.engine.stop import StopRules

FOLDER = model_folder("demo")
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
VOCAB, END = 2048, 1
STOPS = frozenset({END})
DIGITS = Grammar("regex", "[0-9]{30}")
WORDS = Grammar("choice", '["yes", "yesterday", "no"]')
COMPILER = Compiler(Vocabulary.of_folder(FOLDER, rows=VOCAB, stop_ids=STOPS), limit_s=600, check=unchecked)


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def text_of(tokens: list[int]) -> str:
    return str(TOKENIZER.decode([token for token in tokens if token not in STOPS], skip_special_tokens=False))


def schema(value: Any, after: tuple[int, ...] = ()) -> Grammar:
    return Grammar("json_schema", json.dumps(value), after)


PERSON = schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 200}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def followed(id: str, grammar: Grammar, start: int = 0, *, length: int = 9, **options: Any) -> AddRequest:
    request = make_request(id, prompt(length, start), **{"max_tokens": 60, "stop_token_ids": [END], **options})
    request.grammar = grammar
    return request


def matchers_of(request: AddRequest) -> list[Matcher]:
    """As `Preparation` makes them."""
    assert request.grammar is not None
    matchers = []
    for sequence in request.sequences:
        matchers.append(COMPILER.compile(request.grammar))
        assert matchers[-1].accept(sequence.tokens) == len(sequence.tokens)
    return matchers


def barred(request: AddRequest, matcher: Matcher, count: int) -> set[int]:
    """The ids that may not follow `count` tokens."""
    sampling, row = request.sampling, matcher.mask()
    stops = {*sampling.stop_token_ids, *STOPS} if count < sampling.min_tokens else STOPS - set(sampling.stop_token_ids)
    rest = row & ~COMPILER.vocabulary.mask(stops)
    return masked_out(rest if rest.any() else row, VOCAB)


def expected(request: AddRequest, index: int, *, max_model_len: int = 4096) -> tuple[list[int], str]:
    """All tokens of a sequence, published ones included, and how it ends, by the fake model and a matcher alone."""
    assert request.grammar is not None
    sampling, matcher = request.sampling, COMPILER.compile(request.grammar)
    limit, output = min(sampling.max_tokens, max_model_len - len(request.prompt)), list[int]()
    while len(output) < limit:
        history = [*request.prompt, *output]
        output.append(next_token(history, sampling.seed, index, VOCAB, barred(request, matcher, len(output))))
        assert matcher.accept(output[-1:]) == 1
        is_stop = output[-1] in sampling.stop_token_ids and len(output) > sampling.min_tokens
        if is_stop or output[-1] in STOPS:
            return output, "stop"
        if matcher.is_finished:
            return output, "complete"
    return output, "length"


def expected_beams(request: AddRequest, *, max_model_len: int = 4096) -> list[list[int]]:
    """The beams of a search."""
    sampling, prompt = request.sampling, request.prompt
    assert sampling.beam is not None
    assert request.grammar is not None
    rules = StopRules.of(
        sampling, prompt_len=len(prompt), max_model_len=max_model_len, vocab_size=VOCAB, ends=frozenset(STOPS)
    )
    search, live = BeamSearch(sampling.beam, rules), [list[int]()]
    while live:
        said = []
        for tokens in live:
            matcher = COMPILER.compile(request.grammar)
            assert matcher.accept(tokens) == len(tokens)
            forbidden = barred(request, matcher, len(tokens))
            said.append(candidates([*prompt, *tokens], search.num_candidates, VOCAB, forbidden))
        live = [[*live[parent], token] for parent, token in search.advance(live, said)]
    return [found.tokens for found in search.results(len(request.sequences))]
