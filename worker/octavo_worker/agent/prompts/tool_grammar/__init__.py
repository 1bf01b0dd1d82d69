"""Grammars that make a model call tools as `tool_choice` asks, in the format that the model has learned.

For the worker, which knows that format. Nothing here is compiled: the text is llguidance's dialect of Lark.
"""

from octavo_worker.agent.prompts.tool_grammar.calls import ModelTokens, NoToolGrammar, answer_grammar

__all__ = ["ModelTokens", "NoToolGrammar", "answer_grammar"]
