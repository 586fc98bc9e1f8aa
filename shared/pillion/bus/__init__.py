"""The Redis side: connections, streams, leases and hand-over scripts."""
