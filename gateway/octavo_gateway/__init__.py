"""HTTP in front of the queue: requests become jobs, events become answers. No model, no torch, and no state that a
restart would lose."""
