"""Who runs: policy, admission, the waiting queue, the running batch, timers."""
