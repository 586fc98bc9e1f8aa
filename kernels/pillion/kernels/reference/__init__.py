"""The oracle: float32, one sequence and one query at a time, nothing clever."""
