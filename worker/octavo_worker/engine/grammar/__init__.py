"""Structured output: which tokens may follow, so that a sequence's text obeys a grammar."""

from octavo.dialects.grammar.grammars import GrammarError
from octavo_worker.engine.grammar.barred import NONE_BARRED, Barred, bar_all
from octavo_worker.engine.grammar.compiler import Compilation, Compiler
from octavo_worker.engine.grammar.matcher import Matcher, Together
from octavo_worker.engine.grammar.preparation import Preparation
from octavo_worker.engine.grammar.vocabulary import Vocabulary

__all__ = [
    "NONE_BARRED",
    "Barred",
    "Compilation",
    "Compiler",
    "GrammarError",
    "Matcher",
    "Preparation",
    "Together",
    "Vocabulary",
    "bar_all",
]
