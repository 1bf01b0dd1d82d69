"""Blocks of sequences: allocation, sharing, the host's memory, and the report of them."""
