"""Order of work: policy, admission, the waiting queue, the running batch, timers."""
