"""Paged attention and linears on torch operators; row-invariant."""
