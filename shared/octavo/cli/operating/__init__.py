"""Commands for operators of the queue."""
