"""Constraints on a choice's text: what they compile to, and the process that compiles and makes masks."""

from pillion.grammar.process import Grammars, GrammarsGone, Masked

__all__ = ["Grammars", "GrammarsGone", "Masked"]
