"""The tables of docs/configuration.md, made from the code. To rewrite them: python tests/support/settings_table.py"""

from __future__ import annotations

from pathlib import Path

from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from octavo.service.clerk.settings import ClerkSettings
from octavo_gateway.settings import GatewaySettings
from octavo_worker.assembly.settings import WorkerSettings

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
SECTIONS: dict[str, type[BaseSettings]] = {
    "Gateway": GatewaySettings,
    "Worker": WorkerSettings,
    "Clerk": ClerkSettings,
}


def table(settings: type[BaseSettings]) -> str:
    lines = ["| environment | flag | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in settings.model_fields.items():
        default = field.default if field.default not in (None, PydanticUndefined) else ""
        shown = f"`{default}`" if default != "" else ""
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| `OCTAVO_{name.upper()}` | `--{name.replace('_', '-')}` | {shown} | {meaning} |")
    return "\n".join(lines)


def document(text: str) -> str:
    """The document with its tables as the code has them now."""
    for title, settings in SECTIONS.items():
        before, heading, after = text.partition(f"## {title}\n\n")
        _, _, rest = after.partition("\n\n")
        text = f"{before}{heading}{table(settings)}\n\n{rest}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text()))
