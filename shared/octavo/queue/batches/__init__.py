"""Files and batches in the queue: their keys, their transitions, and how they are read."""
