"""Problems that pydantic finds with a value, in this package's words: no sentence of a library reaches a user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core.core_schema import ErrorType

_MOST_WORDS = 500  # characters of a message: it may repeat what was sent
_OTHERWISE = "has a value that is not allowed here"
_OWN_WORDS = {"value_error", "assertion_error", "json_invalid"}  # whatever raised them said it
_OF_PYDANTIC = frozenset(get_args(ErrorType)) - _OWN_WORDS
_KINDS = {
    "text": "string_type string_unicode bytes_type url_type",
    "an integer": "int_type int_parsing int_from_float",
    "a number": "float_type float_parsing decimal_type decimal_parsing",
    "a finite number": "finite_number",
    "true or false": "bool_type bool_parsing",
    "null": "none_required",
    "a list": "list_type tuple_type set_type frozen_set_type deque_type iterable_type",
    "an object": "dict_type mapping_type model_type model_attributes_type dataclass_type dataclass_exact_type",
}
"""Names of what a value must be, and the types of errors that say so."""
_SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "is unknown: leave it out",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "int_parsing_size": "is an integer of too many digits",
    "too_short": "needs at least {min_length} of its items, and has {actual_length}",
    "too_long": "may have at most {max_length} items",
    "string_too_short": "needs at least {min_length} characters",
    "string_too_long": "may have at most {max_length} characters",
    "bytes_too_short": "needs at least {min_length} bytes",
    "bytes_too_long": "may have at most {max_length} bytes",
    "string_pattern_mismatch": "must match {pattern}",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must have one of these values of {discriminator}: {expected_tags}",
    "union_tag_not_found": "must say its {discriminator}",
    "recursion_loop": "contains itself",
    "recursion_depth_exceeded": "is nested too deeply",
    "invalid_key": "may have text alone for names",
    "is_instance_of": "must be an instance of {class}",
}
"""By type of error; the names are those of its context."""
_SENTENCES |= {kind: f"must be {what}" for what, kinds in _KINDS.items() for kind in kinds.split()}


def in_words(problem: Mapping[str, Any], subject: str = "") -> str:
    """A sentence for one of `ValidationError.errors()`, with its context. It repeats nothing of the input."""
    kind, context = problem["type"], problem.get("ctx") or {}
    if kind not in _OF_PYDANTIC:
        said = str(context.get("error", problem["msg"]))
        return _cut(f"{subject}: {said}" if subject else said)
    return _cut(f"{subject or 'it'} {_SENTENCES.get(kind, _OTHERWISE).format_map(context)}")


def first_in_words(error: ValidationError, subject: str = "") -> str:
    """A sentence for the first problem of a value, whichever of its fields has it."""
    return in_words(error.errors(include_url=False, include_input=False)[0], subject)


def _cut(message: str) -> str:
    return message if len(message) <= _MOST_WORDS else f"{message[:_MOST_WORDS]} ..."
