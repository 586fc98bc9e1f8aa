"""How long a step takes: what a forward pass computes, and a cost model of it, kept in a file."""

from .file import CostModelError, load, save
from .model import Curve, Error, Provenance, StepTime, Ways
from .work import Work

__all__ = ["CostModelError", "Curve", "Error", "Provenance", "StepTime", "Ways", "Work", "load", "save"]
