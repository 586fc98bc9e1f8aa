"""Mixed traffic for a long time, and whether everything came back to where it was."""
