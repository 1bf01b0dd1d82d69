"""Tool calls and reasoning, taken out of the text that a model generates.

`Parser` reads one sequence piece by piece; `family_of` says which formats a model writes. For the gateway and the
client: the text in the queue stays as it was generated.
"""

from octavo.dialects.parsing.answer import Call, CallDelta, ContentDelta, Delta, Parsed, ReasoningDelta, assemble
from octavo.dialects.parsing.families import ends_in_thought, family_of
from octavo.dialects.parsing.formats import HARMONY, NONE, REASONING_FORMATS, TOOL_FORMATS, ToolFormat, is_marker
from octavo.dialects.parsing.ids import shortened_call_id
from octavo.dialects.parsing.meter import ThoughtMeter, closing_text, continued_formats
from octavo.dialects.parsing.parser import Parser
from octavo.dialects.parsing.stop_strings import AnswerStops, StopStrings
from octavo.dialects.parsing.syntax import BareArguments, CallSyntax, TaggedArguments

__all__ = [
    "HARMONY",
    "NONE",
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "AnswerStops",
    "BareArguments",
    "Call",
    "CallDelta",
    "CallSyntax",
    "ContentDelta",
    "Delta",
    "Parsed",
    "Parser",
    "ReasoningDelta",
    "StopStrings",
    "TaggedArguments",
    "ThoughtMeter",
    "ToolFormat",
    "assemble",
    "closing_text",
    "continued_formats",
    "ends_in_thought",
    "family_of",
    "is_marker",
    "shortened_call_id",
]
