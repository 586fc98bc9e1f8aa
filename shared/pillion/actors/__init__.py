"""Mailboxes and a supervisor: each service is a small actor system."""
