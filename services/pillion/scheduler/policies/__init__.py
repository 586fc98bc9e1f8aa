"""Batching policies behind one interface, one a file."""
