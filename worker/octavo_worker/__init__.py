"""The worker: an agent that talks to the queue, and an engine that computes."""

import os

# Before anything brings torch: after each of its parallel operations its OpenMP threads would spin for milliseconds, on
# cores that the kernels' own threads want, and on small machines the agent, the server and the client. They took 5 to
# 15 % of the engine's CPU time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
