"""Attention and linear backends behind one interface."""
