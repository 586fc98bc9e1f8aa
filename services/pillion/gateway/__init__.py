"""HTTP in, events out: validation, templates, tokens, the output stage."""
