"""instructor: answers as pydantic models, by calls and by schemas, streamed and asked for again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import instructor
import openai
import pydantic
import pytest
from instructor import Mode
from waiting import STALL_S

pytestmark = pytest.mark.clients

ASKED: list[Any] = [{"role": "user", "content": "Name a city."}]


def capitalised(name: str) -> str:
    if not name.istitle():
        raise ValueError("a name begins with a capital letter")
    return name


class City(pydantic.BaseModel):
    """A city."""

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(max_length=12)
    inhabitants: int = pydantic.Field(ge=0, le=10**8)


class ProperCity(City):
    """A city whose name is spelt as names are."""

    name: Annotated[str, pydantic.AfterValidator(capitalised)]


@pytest.fixture
def structured(ai: openai.AsyncOpenAI) -> Callable[[Mode], instructor.AsyncInstructor]:
    return lambda mode: instructor.from_openai(ai, mode=mode)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


OSLO = '{"name": "Oslo", "inhabitants": 7}'
COMPACT = '{"name":"Oslo","inhabitants":7}'  # what a schema holds an answer to


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.TOOLS_STRICT])
async def test_a_model_by_a_call(structured, start_model, mode):
    start_model("hermes", call("City", OSLO))
    city, raw = await structured(mode).chat.completions.create_with_completion(
        model="hermes", messages=ASKED, response_model=City, max_tokens=200
    )
    assert (city.name, city.inhabitants) == ("Oslo", 7)
    assert raw.usage.completion_tokens > 5


@pytest.mark.parametrize("mode", [Mode.JSON, Mode.MD_JSON, Mode.JSON_SCHEMA])
async def test_a_model_by_json(structured, start_model, mode):
    start_model("hermes", f"```json\n{OSLO}\n```" if mode is Mode.MD_JSON else COMPACT)
    city = await structured(mode).create(model="hermes", messages=ASKED, response_model=City, max_tokens=200)
    assert (city.name, city.inhabitants) == ("Oslo", 7)


async def test_a_model_by_a_call_of_a_response(structured, start_model):
    start_model("hermes", call("City", OSLO))
    city = await structured(Mode.RESPONSES_TOOLS).create(model="hermes", messages=ASKED, response_model=City)
    assert (city.name, city.inhabitants) == ("Oslo", 7)


async def test_an_invalid_model_is_asked_for_again(structured, start_model):
    """The call, and what is wrong with it as its result, go back to the model."""
    wrong, right = call("ProperCity", OSLO.replace("Oslo", "oslo")), call("ProperCity", OSLO)
    start_model("hermes", wrong, reply=right)
    asking = structured(Mode.TOOLS)
    tries = []
    asking.on("completion:kwargs", lambda **fields: tries.append(len(fields["messages"])))
    city = await asking.create(model="hermes", messages=ASKED, response_model=ProperCity, max_retries=2)
    assert city.name == "Oslo"
    assert tries == [1, 3]


async def test_parallel_calls(structured, start_model):
    start_model("hermes", f"{call('City', OSLO)}\n{call('ProperCity', OSLO)}")
    found = await structured(Mode.PARALLEL_TOOLS).create(
        model="hermes", messages=ASKED, response_model=Iterable[City | ProperCity]
    )
    assert [type(item).__name__ for item in found] == ["City", "ProperCity"]


async def test_a_model_that_grows_while_it_streams(structured, start_model):
    start_model("hermes", call("PartialCity", OSLO))
    stream = structured(Mode.TOOLS).create_partial(model="hermes", messages=ASKED, response_model=City)
    seen = [(city.name, city.inhabitants) async for city in stream]
    assert (None, None) in seen
    assert seen[-1] == ("Oslo", 7)


async def test_a_list_that_streams(structured, start_model):
    start_model("hermes", call("IterableCity", f'{{"tasks": [{OSLO}, {OSLO.replace("Oslo", "Bergen")}]}}'))
    stream = structured(Mode.TOOLS).create_iterable(model="hermes", messages=ASKED, response_model=City)
    assert [city.name async for city in stream] == ["Oslo", "Bergen"]


async def test_a_real_model_keeps_to_a_schema(demo_url):
    ai = openai.AsyncOpenAI(base_url=f"{demo_url}/v1", api_key="none", max_retries=0, timeout=STALL_S)
    asking = instructor.from_openai(ai, mode=Mode.JSON_SCHEMA)
    for seed in range(5):
        city = await asking.create(
            model="demo", messages=ASKED, response_model=City, max_retries=0, seed=seed, temperature=1.0
        )
        assert isinstance(city, City)
