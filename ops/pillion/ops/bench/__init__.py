"""Figures: `pillion bench`, and a module for each thing that is measured by itself."""
