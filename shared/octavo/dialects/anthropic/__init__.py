"""Anthropic's messages: bodies to job requests, events of a job to events of theirs."""
