"""Refuses, holds or forwards requests, by credit."""
