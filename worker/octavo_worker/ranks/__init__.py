"""Ranks of one model: their processes, the memory that they share, sums and gathers. No layer and no step is known
here."""
