"""Operators' part of the queue: lanes that are paused, and jobs that were given up."""
