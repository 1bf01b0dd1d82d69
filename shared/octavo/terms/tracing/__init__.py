"""Traces: the context that travels with a job, the names that spans have, and spans as plain values."""
