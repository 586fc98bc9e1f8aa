"""Measures how long a live executor's steps take, and fits a cost model."""
