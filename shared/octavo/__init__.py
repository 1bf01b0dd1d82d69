"""The light client of octavo: submit generation jobs, stream their tokens, collect their results."""
