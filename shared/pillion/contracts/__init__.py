"""What services say to each other: stream entries (msgspec) and the executor's gRPC contract (protobuf)."""
