"""Runs the steps: slots, buffers, the model, sampling."""
