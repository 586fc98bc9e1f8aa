"""Each API form to a neutral request, and that to the entry on the bus. Pure: no I/O, clock or randomness."""
