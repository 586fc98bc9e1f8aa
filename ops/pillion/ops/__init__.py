"""The command line and what starts, checks and measures a stack."""
