"""The API's description of itself: each operation has a name of its own, and each body examples that are valid."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_gateway.app import create_app
from octavo_gateway.operations import OPERATIONS
from octavo_gateway.routes import _BODIES
from octavo_gateway.settings import GatewaySettings

Described = dict[tuple[str, str], dict[str, Any]]
MODELS = {model.__name__: model for model in _BODIES}
EXAMPLES = [
    pytest.param(method, path, name, value, id=f"{path} {name}")
    for (method, path), operation in OPERATIONS.items()
    for name, value in operation.examples.items()
]


@pytest.fixture(scope="module")
def described() -> Described:
    paths = create_app(GatewaySettings()).openapi()["paths"]
    return {(method, path): found for path, methods in paths.items() for method, found in methods.items()}


def test_every_operation_has_a_name_of_its_own(described: Described) -> None:
    assert described.keys() == OPERATIONS.keys()
    ids = [found["operationId"] for found in described.values()]
    assert len(set(ids)) == len(ids)
    assert all(name.isalpha() and name[0].islower() for name in ids)
    assert all(found["summary"] == OPERATIONS[key].summary for key, found in described.items())


def test_every_body_and_every_path_has_examples(described: Described) -> None:
    for key, found in described.items():
        if (body := found.get("requestBody")) is not None:
            assert "multipart/form-data" in body["content"] or body["content"]["application/json"]["examples"], key
        for parameter in found.get("parameters", ()):
            assert parameter["in"] != "path" or parameter["example"], key


@pytest.mark.parametrize(("method", "path", "name", "value"), EXAMPLES)
def test_an_example_is_a_valid_body(described: Described, method: str, path: str, name: str, value: Any) -> None:
    content = described[method, path]["requestBody"]["content"]["application/json"]
    assert content["examples"][name] == {"value": value}
    model = MODELS[content["schema"]["$ref"].rpartition("/")[2]]
    assert model.model_validate(value)
