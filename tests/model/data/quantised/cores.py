"""GPTQModel wants more workers than a machine of two cores has, and counts the cores when it is imported."""

import os

os.cpu_count = lambda: 8
os.sched_getaffinity = lambda _: set(range(8))
