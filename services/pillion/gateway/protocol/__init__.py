"""API forms to requests. No I/O."""
