"""Dialects of others (OpenAI, Anthropic, UI messages), the parsing of models' text, and grammars: pure functions from
values to values. Nothing here connects to a server or speaks HTTP."""
