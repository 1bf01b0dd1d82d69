"""Beam search: hypotheses, the group that shares a step, and its part in the running batch."""
