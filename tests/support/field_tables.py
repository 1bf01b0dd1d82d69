"""The tables of fields in the documents of the dialects, made from the code. To rewrite them:
python tests/support/field_tables.py"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from octavo.dialects.anthropic.fields import HINTS as OF_MESSAGES
from octavo.dialects.anthropic.fields import REFUSED as MESSAGES_REFUSED
from octavo.dialects.elsewhere import ELSEWHERE
from octavo.dialects.field_table import Refusal
from octavo.dialects.openai.fields import CHAT_HINTS, CHAT_REFUSED, COMPLETION_HINTS, COMPLETION_REFUSED, REFUSED
from octavo.dialects.openai.responses.fields import HINTS as OF_RESPONSES
from octavo.dialects.openai.responses.fields import REFUSED as RESPONSES_REFUSED

DOCUMENTS = Path(__file__).parents[2] / "docs"


def hints(names: Iterable[str]) -> str:
    return "\n".join(textwrap.wrap(", ".join(f"`{name}`" for name in sorted(names)), 124, break_on_hyphens=False))


def refused(table: Mapping[str, Refusal]) -> str:
    """A line for each advice."""
    by_advice: dict[str, list[str]] = {}
    for name, refusal in table.items():
        neutral = " or ".join(f"{value!r}".lower().replace("'", '"') for value in refusal.neutral)
        by_advice.setdefault(refusal.advice, []).append(f"`{name}`{f' (taken at {neutral})' if neutral else ''}")
    rows = [f"| {', '.join(names)} | {advice} |" for advice, names in by_advice.items()]
    return "\n".join(["| field | instead |", "| --- | --- |", *rows])


def without(table: Mapping[str, Refusal], other: Mapping[str, Refusal]) -> dict[str, Refusal]:
    return {name: refusal for name, refusal in table.items() if name not in other}


PAGES = {
    "openai.md": {
        "Known hints of a chat": hints(CHAT_HINTS),
        "Known hints of a completion": hints(COMPLETION_HINTS),
        "Refused in both": refused(REFUSED),
        "Refused in a chat": refused(without(CHAT_REFUSED, REFUSED)),
        "Refused in a completion": refused(without(COMPLETION_REFUSED, REFUSED)),
        "Refused everywhere": refused(ELSEWHERE),
    },
    "responses.md": {"Known hints": hints(OF_RESPONSES), "Refused fields": refused(RESPONSES_REFUSED)},
    "anthropic.md": {"Known hints": hints(OF_MESSAGES), "Refused fields": refused(MESSAGES_REFUSED)},
}
"""Tables by the heading that they stand below."""


def document(page: str, text: str) -> str:
    """The document with its tables as the code has them now. Raises ValueError for a heading that it lacks."""
    for title, table in PAGES[page].items():
        before, heading, after = text.partition(f"### {title}\n\n")
        if not heading:
            raise ValueError(f"{page} has no heading {title!r}")
        _, _, rest = after.partition("\n\n")
        text = f"{before}{heading}{table}\n\n{rest}"
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = DOCUMENTS / page
        path.write_text(document(page, path.read_text()))
