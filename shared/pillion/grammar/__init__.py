"""Constraints on a choice's text: what they compile to, and the process that compiles and makes masks."""

from pillion.grammar.process import Grammars, GrammarsGone, Masked
from pillion.grammar.wire import PLACES

__all__ = ["PLACES", "Grammars", "GrammarsGone", "Masked"]
