"""The form of an answer, by its body: `response_format` as OpenAI has it, `structured_outputs` and the older `guided_*`
as vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from octavo.dialects.openai.fields import Body, JsonObject
from octavo.dialects.strict_schema import strict
from octavo.terms.errors import GrammarError
from octavo.terms.structured import Grammar, check_grammar, written

Schema = JsonObject
Text = Annotated[str, StringConstraints(min_length=1)]
Choices = Annotated[tuple[str, ...], Field(min_length=1, fail_fast=True)]


class NamedSchema(Body):
    """A schema; `name` and `description` are for people. With `strict`, objects have no properties but those named."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    json_schema: Schema | None = Field(None, alias="schema")
    strict: bool | None = None

    @property
    def grammar(self) -> Grammar:
        return Grammar("json_object") if self.json_schema is None else of_schema(self.json_schema, self.strict)


class ResponseFormat(Body):
    """Any text, any JSON object, or JSON that is valid by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_is_due(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema")
        return self

    @property
    def grammar(self) -> Grammar | None:
        if self.json_schema is not None:
            return self.json_schema.grammar
        return Grammar("json_object") if self.type == "json_object" else None


class StructuredOutputs(Body):
    """vLLM's: one of these. JSON is compact here whatever `disable_any_whitespace` says."""

    json_schema: Schema | str | None = Field(None, alias="json")
    regex: Text | None = None
    choice: Choices | None = None
    grammar_text: Text | None = Field(None, alias="grammar")
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self._grammars()) != 1:
            raise ValueError("give one of json, regex, choice, grammar and json_object: true")
        return self

    def _grammars(self) -> list[Grammar]:
        found = _grammars(self.json_schema, self.regex, self.choice, self.grammar_text)
        return [*found, *([Grammar("json_object")] if self.json_object else [])]

    @property
    def grammar(self) -> Grammar:
        (found,) = self._grammars()
        if found.kind == "json_schema" and self.disable_additional_properties:
            return Grammar("json_schema", _strict(found.text))
        return found


class StructuredFields(Body):
    """The fields of both endpoints. At most one of them asks for a grammar."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None

    @model_validator(mode="after")
    def _one_grammar(self) -> Self:
        found = self._formats()
        if len(found) > 1:
            raise ValueError(f"give one of {' and '.join(sorted(found))}")
        for grammar in found.values():
            check_grammar(grammar)
        return self

    def _formats(self) -> dict[str, Grammar]:
        found: dict[str, Any] = {
            "response_format": self.response_format and self.response_format.grammar,
            "structured_outputs": self.structured_outputs and self.structured_outputs.grammar,
        }
        guided = {
            "guided_json": _grammars(self.guided_json, None, None, None),
            "guided_regex": _grammars(None, self.guided_regex, None, None),
            "guided_choice": _grammars(None, None, self.guided_choice, None),
            "guided_grammar": _grammars(None, None, None, self.guided_grammar),
        }
        found.update({name: grammars[0] for name, grammars in guided.items() if grammars})
        return {name: grammar for name, grammar in found.items() if grammar is not None}

    @property
    def grammar(self) -> Grammar | None:
        """Grammar of the answer."""
        return next(iter(self._formats().values()), None)

    @property
    def grammar_field(self) -> str | None:
        """The field that says so."""
        return next(iter(self._formats()), None)


def of_schema(schema: Schema, is_strict: bool | None = None) -> Grammar:
    """The grammar of a schema, `strict` as in OpenAI's API. Raises ValueError."""
    text = written(schema)
    return Grammar("json_schema", _strict(text) if is_strict else text)


def _strict(text: str) -> str:
    try:
        return strict(text)
    except GrammarError as error:
        raise ValueError(error.message) from None


def _grammars(
    schema: Schema | str | None, regex: str | None, choice: tuple[str, ...] | None, lark: str | None
) -> list[Grammar]:
    found = []
    if schema is not None:
        found.append(Grammar("json_schema", schema) if isinstance(schema, str) else of_schema(schema))
    if regex is not None:
        found.append(Grammar("regex", regex))
    if choice is not None:
        found.append(Grammar("choice", written(choice)))
    if lark is not None:
        found.append(Grammar("lark", lark))
    return found
