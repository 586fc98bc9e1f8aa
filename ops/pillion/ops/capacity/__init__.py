"""Capacity: the highest rate at which P99 TBT keeps its target and requests hardly wait."""
