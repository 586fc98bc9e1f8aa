"""Names, metrics, spans and logs."""
