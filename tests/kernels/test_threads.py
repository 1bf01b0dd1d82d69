import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time

import pytest
import torch
from waiting import STALL_S

from octavo_kernels import _cpu, ops
from octavo_kernels.product import Product

X, WEIGHT = torch.randn(4, 512), torch.randn(2000, 512)


def test_default_is_the_cores_this_process_may_use():
    script = "from octavo_kernels import _cpu; import os; assert _cpu.num_threads() == len(os.sched_getaffinity(0))"
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(ValueError, match="at least 1"):
        ops.set_num_threads(0)


def test_calls_from_many_threads_at_once(threads):
    ops.set_num_threads(3)
    expected, wrong = ops.linear(Product(X, WEIGHT)), []

    def call():
        wrong.extend(1 for _ in range(30) if not torch.equal(ops.linear(Product(X, WEIGHT)), expected))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def _child(expected, queue):
    queue.put(torch.equal(ops.linear(Product(X, WEIGHT)), expected))


def test_a_forked_child_gets_its_own_pool(threads):
    ops.set_num_threads(2)
    expected = ops.linear(Product(X, WEIGHT))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(expected, queue))
    child.start()
    assert queue.get(timeout=STALL_S)
    child.join(timeout=STALL_S)
    assert child.exitcode == 0


def test_idle_threads_sleep(threads):
    ops.set_num_threads(4)
    ops.linear(Product(X, WEIGHT))
    time.sleep(0.05)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(0.5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.05


def run_with_level(name):
    return subprocess.run(
        [sys.executable, "-c", "from octavo_kernels import _cpu; print(_cpu.level())"],
        env={**os.environ, "OCTAVO_CPU_LEVEL": name},
        capture_output=True,
        text=True,
    )


def test_level_comes_from_the_environment():
    for name in _cpu.levels():
        assert run_with_level(name).stdout.strip() == name
    failed = run_with_level("mmx")
    assert failed.returncode != 0
    assert "'mmx' is not available here; choose one of: baseline" in failed.stderr
    with pytest.raises(ValueError, match="choose one of"):
        _cpu.set_level("mmx")
