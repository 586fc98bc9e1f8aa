"""`ops/chaos`: kills and stops the processes of a real stack at random, and compares every stream."""
