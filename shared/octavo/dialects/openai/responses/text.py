"""The form of a response's text, by its body."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from octavo.dialects.openai.fields import Body, Word
from octavo.dialects.openai.structured import Schema, of_schema
from octavo.terms.structured import Grammar, check_grammar


class TextFormat(Body):
    """Any text, any JSON object, or JSON that is valid by a schema. `name` and `description` are for people."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    json_schema: Schema | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_where_it_is_due(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("schema belongs to the type json_schema")
        if (grammar := self.grammar) is not None:
            check_grammar(grammar)
        return self

    @property
    def grammar(self) -> Grammar | None:
        """Grammar of the answer."""
        if self.json_schema is not None:
            return of_schema(self.json_schema, self.strict)
        return Grammar("json_object") if self.type == "json_object" else None

    def shown(self) -> dict[str, Any]:
        """As the response shows it."""
        if self.json_schema is None:
            return {"type": self.type}
        return {
            "type": self.type,
            "name": self.name or "answer",
            "description": self.description,
            "schema": self.json_schema,
            "strict": bool(self.strict),
        }


class TextOptions(Body):
    """`verbosity` changes nothing."""

    format: TextFormat | None = None
    verbosity: Word | None = None

    def shown(self) -> dict[str, Any]:
        return {"format": (self.format or ANY).shown(), "verbosity": self.verbosity or "medium"}


ANY = TextFormat(type="text")
