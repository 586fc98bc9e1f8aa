"""Feeds a stack anything: whatever comes, no 5xx without a reason, no crash, no traceback."""
