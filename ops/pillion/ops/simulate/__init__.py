"""The real scheduler core, and the real admission and routing, on a virtual clock against a cost model."""
