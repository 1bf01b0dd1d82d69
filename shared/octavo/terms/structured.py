"""The form that a job asks of its text. `octavo.dialects.grammar` compiles it, with an extra; this needs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps
from typing import Any, ClassVar, Literal, get_args

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]
GRAMMAR_KINDS: tuple[str, ...] = get_args(GrammarKind)
MAX_GRAMMAR_BYTES = 256 * 1024
MAX_AFTER = 16


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language that the tokens of a sequence must spell.

    `text` is a JSON schema, a regular expression that matches the whole, a JSON array of the strings to choose from, or
    a grammar in llguidance's dialect of Lark; `json_object` has none. Stop tokens are no part of it: they follow where
    it may end. The grammar begins after the first place where the token ids `after` stand one behind the other
    (`</think>`), at once without.

    JSON is written without whitespace unless `x-guidance` in the schema asks for it: a model that may write blanks may
    write them without end. Properties come in the order of the schema.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # for requests that are read; without pydantic a plain name

    kind: GrammarKind
    text: str = ""
    after: tuple[int, ...] = ()


def as_grammar(value: Any) -> Any:
    """A grammar as people write it, as the fields of one: `text` of a schema or of choices may be the JSON value
    itself. What is no map is left as it is. Raises ValueError."""
    if not isinstance(value, Mapping):
        return value
    kind, text = value.get("kind"), value.get("text", "")
    if kind in ("json_schema", "choice") and not isinstance(text, str):
        return {**value, "text": written(text)}
    return dict(value)


def of_keyword(kind: str, value: Any) -> Grammar | None:
    """The grammar that one keyword of a client asks for, such as `json_schema={...}`; none for None and
    `json_object=False`. A class with `model_json_schema`, as pydantic's models have it, stands for its schema. Raises
    ValueError."""
    if value is None or (kind == "json_object" and value is False):
        return None
    if kind == "json_object":
        if value is not True:
            raise ValueError("json_object is True or False")
        return Grammar("json_object")
    if kind == "json_schema" and hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if kind == "choice" and not isinstance(value, str):
        value = list(value)
    if not isinstance(value, str):
        value = written(value)
    return Grammar(kind, value)  # type: ignore[arg-type]


def check_grammar(grammar: Grammar) -> None:
    """Raises ValueError for what needs no compiler to be seen."""
    size = len(grammar.text.encode("utf-8", "surrogatepass"))
    if size > MAX_GRAMMAR_BYTES:
        raise ValueError(f"the grammar has {size} bytes: {MAX_GRAMMAR_BYTES} are allowed")
    if (grammar.kind == "json_object") != (not grammar.text):
        raise ValueError("text is required: only json_object has none")
    if len(grammar.after) > MAX_AFTER or any(token < 0 for token in grammar.after):
        raise ValueError(f"after has up to {MAX_AFTER} token ids, none below 0")


def written(value: Any) -> str:
    """JSON of a value, members in their order. Raises ValueError."""
    try:
        return dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it cannot be written as JSON: {error}") from None
