"""Public parsing of answers. Inside octavo it is imported from `octavo.dialects.answer_parser`."""

from octavo.dialects.answer_parser import AnswerParser

__all__ = ["AnswerParser"]
