"""Problems of values are told in this package's words, whatever pydantic says of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ErrorType

from octavo.client.requests import build_request
from octavo.dialects.openai.problems import invalid_body
from octavo.dialects.openai.requests import ChatCompletionRequest
from octavo.terms.errors import InvalidRequest
from octavo.terms.problems import first_in_words, in_words

CONTEXT = {
    "gt": 1,
    "ge": 1,
    "lt": 1,
    "le": 1,
    "multiple_of": 2,
    "pattern": "a+",
    "expected": "'a' or 'b'",
    "class": "X",
    "min_length": 1,
    "max_length": 2,
    "actual_length": 3,
    "discriminator": "'type'",
    "expected_tags": "'a'",
}
THEIRS = ("Input ", "should ", "Value error", "Tuple", "Extra inputs", "Field required", "String", "permitted")


@pytest.mark.parametrize("kind", get_args(ErrorType))
def test_every_error_of_the_library_has_words_of_ours(kind: str) -> None:
    said = in_words({"type": kind, "msg": "Input should be theirs", "ctx": CONTEXT | {"error": "ours"}}, "field")
    assert said.startswith("field")
    assert not any(word in said for word in THEIRS)


def test_an_error_of_our_own_keeps_its_words() -> None:
    def refuse(value: Any) -> None:
        raise PydanticCustomError("not_supported", "say {what} instead", {"what": "b"})

    def object_to(value: Any) -> None:
        raise ValueError("no such thing")

    for check, said in ((refuse, "x: say b instead"), (object_to, "x: no such thing")):
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(Annotated[int, BeforeValidator(check)]).validate_python(1)
        assert first_in_words(caught.value, "x") == said


class Sized(BaseModel, extra="forbid"):
    items: Annotated[tuple[int, ...], Field(max_length=2)] = ()
    kind: Literal["a", "b"] = "a"
    rate: Annotated[float, Field(ge=0, le=2)] = 1.0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"items": [1, 2, 3]}, "it may have at most 2 items"),
        ({"kind": "c"}, "it must be 'a' or 'b'"),
        ({"rate": 9}, "it must be at most 2"),
        ({"rate": "fast"}, "it must be a number"),
        ({"colour": 1}, "it is unknown: leave it out"),
        ([], "it must be an object"),
    ],
)
def test_a_problem_says_what_a_value_must_be(value: Any, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Sized.model_validate(value)
    assert first_in_words(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": 9}, "temperature must be at most 2"),
        ({"n": "many"}, "n must be an integer"),
        ({"colour": "red"}, "colour is unknown: leave it out"),
        ({"prompt": ""}, "prompt is empty: give at least one character or token id"),
        ({"stop": ["x"] * 99}, "stop may have at most 16 items"),
        ({"model": "a b"}, "model must match"),
    ],
)
def test_the_client_says_which_field_must_be_what(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_request(**{"prompt": "x", "model": "m", **fields})
    assert caught.value.message.startswith(said)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"temperature": 9}, "temperature", "temperature must be at most 2"),
        ({"messages": []}, "messages", "messages needs at least 1"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0", "messages.0"),
        ({"stream": "perhaps"}, "stream", "stream must be true or false"),
    ],
)
def test_a_body_says_which_field_must_be_what(fields: dict[str, Any], param: str, said: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate(body)
    problem = invalid_body(caught.value)
    assert (problem.param or "").startswith(param)
    assert problem.message.startswith(said)
    assert not any(word in problem.message for word in THEIRS)
