"""Mixers that keep a state instead of keys and values."""
