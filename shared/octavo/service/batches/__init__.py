"""Batches: files of lines, each a job."""
