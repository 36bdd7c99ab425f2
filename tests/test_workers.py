"""Workers: whatever an item does to its process costs that item alone."""

import collections
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rl_reason.verifiers import progress, workers


def pool(count=1, seconds=1.0, **limits):
  return workers.Pool("misbehaviour:behave", count, seconds, **limits)


def outcomes(items, *args, **limits):
  """Outcomes of items, and the failures that the pool counted."""
  with pool(*args, **limits) as p:
    return p.results(p.submit([(item,) for item in items])), p.failures


@pytest.mark.parametrize(
    ("how", "failure", "limits"),
    [
        ("spin", "time", {}),
        ("spin in C", "time", {}),  # no signal handler of Python would run
        ("sleep", "time", {}),
        ("exit", "crash", {}),
        ("die", "crash", {}),
        ("allocate", "memory", {"megabytes": 512}),
        ("lie", "crash", {}),
        ("babble", "crash", {}),
        ("flood", "crash", {}),
        ("fail", "error: KeyError: 'no such thing'", {}),
        ("no JSON", "error: TypeError", {}),
    ],
)
def test_one_bad_item_fails_alone(how, failure, limits):
  found, failures = outcomes([1, how, 2], **limits)
  assert [x.value for x in found] == [1, None, 2]
  assert [x.failure for x in found[::2]] == [None] * 2
  assert found[1].failure.startswith(failure), found
  assert failures == {failure.partition(":")[0]: 1}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["stop", "ignore signals", "fork", "sleep"])
def test_a_worker_is_killed_from_outside_with_all_that_it_forked(how):
  with pool(1, seconds=1.0) as p:
    pid = p.results(p.submit([("pid",)]))[0].value
    began = time.monotonic()
    pending = p.submit([(how,)])
    children = []
    while not pending[0].done():
      children += progress.descendants(pid)
      time.sleep(0.02)
    assert p.results(pending)[0].failure == "time"
    assert time.monotonic() - began < 10  # 2 s on an idle machine
    assert bool(children) == (how == "fork")
    assert all(map(gone, [pid, *children]))


def test_a_process_that_has_ended_has_no_children_and_no_time():
  """Looks at /proc do not raise when a process ends in the middle of one."""
  with subprocess.Popen(["true"]) as process:
    pass
  assert progress.descendants(process.pid) == []
  assert progress.cpu_seconds(process.pid) == 0
  assert not progress.Progress([process.pid], 1, 1).late()


def test_results_are_in_the_order_of_items():
  """Though workers finish out of order, and some die on the way."""
  items = [
      "nap" if i == 0 else "exit" if i % 50 == 7 else i for i in range(120)
  ]
  found, failures = outcomes(items, 3)
  for item, outcome in zip(items, found, strict=True):
    value = None if isinstance(item, str) else item
    assert outcome == (value, "crash" if item == "exit" else None)
  assert failures == {"crash": 3}


def test_time_is_cpu_time():
  """An item that waits, as on a loaded machine, is not late."""
  found, _ = outcomes(["nap", "spin"], seconds=0.5)
  assert [x.failure for x in found] == [None, "time"]


def test_texts_of_all_kinds_arrive():
  """What a function prints is no answer."""
  texts = ["", "\x00", "a\nb\r\n", "\u202e\U0001f600", "\ud800", "x" * 300_000]
  found, _ = outcomes([*texts, "print"])
  assert [x.value for x in found] == [*texts, None]


def test_work_overlaps_and_several_batches_may_wait():
  with pool(2) as p:
    start = time.monotonic()
    first, second = p.submit([("nap",)]), p.submit([(1,), (2,)])
    assert time.monotonic() - start < 30
    assert [x.value for x in p.results(second)] == [1, 2]
    assert p.results(first) == [(None, None)]


def test_workers_are_replaced_only_after_failures():
  found, _ = outcomes(["pid"] * 9 + ["fail", "pid"])
  pids = [x.value for x in found]
  assert len({*pids[:9]}) == 1 and pids[0] not in (os.getpid(), pids[-1])


def test_a_worker_imports_what_its_function_needs():
  """Not the script that started us, and not jax."""
  with workers.Pool("rl_reason.verifiers.math:verify") as p:
    texts = ["\\boxed{\\sqrt{12}}", "\\boxed{9^{9^{9^9}}}", ""]
    found = p.results(p.submit([(text, "2\\sqrt3") for text in texts]))
  assert found == [(True, None), (False, None), (False, None)]
  code = "import sys; from rl_reason.verifiers import math, choice, workers;"
  code += "print(sorted({'jax', 'numpy', 'sympy'} & set(sys.modules)))"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True)
  assert done.stdout == b"[]\n", done.stderr


def test_close_kills_what_runs_and_cancels_what_waits():
  p = pool(seconds=60)
  running, waiting = p.submit([("spin",), (1,)])
  while not running.running():
    time.sleep(0.01)
  start = time.monotonic()
  p.close()
  assert time.monotonic() - start < 5
  assert waiting.cancelled() and running.result().failure
  with pytest.raises(RuntimeError, match="closed"):
    p.submit([(1,)])
  p.close()  # twice does no harm


def gone(pid):
  """Whether a process has ended, within ten seconds."""
  for _ in range(1000):
    try:
      with open(f"/proc/{pid}/stat") as f:
        if f.read().rpartition(")")[2].split()[0] == "Z":
          return True
    except FileNotFoundError:
      return True
    time.sleep(0.01)
  return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_handle_is_closed_once_where_two_threads_kill(monkeypatch):
  """`close` of a pool and the thread of a worker may kill it together."""
  worker = workers._Worker(json.dumps(["math:sqrt", 1.0, 10.0, 2048]))
  child = subprocess.Popen(["sleep", "60"])
  worker.started = {child.pid: os.pidfd_open(child.pid)}
  (handle,) = worker.started.values()
  close, closed = os.close, []

  def slow(descriptor):
    closed.append(descriptor)
    time.sleep(0.3)
    close(descriptor)

  monkeypatch.setattr(os, "close", slow)
  with concurrent.futures.ThreadPoolExecutor(2) as threads:
    pending = [threads.submit(worker.kill) for _ in range(2)]
    assert [x.result() for x in pending] == [None, None]
  assert closed.count(handle) == 1
  assert child.wait(10) == -signal.SIGKILL
  worker.process.wait()
  worker.socket.close()


def test_workers_die_with_their_parent():
  """Killed while an item spins that might spin for an hour."""
  code = f"""
import sys
sys.path[:] = {sys.path!r}
import test_workers
p = test_workers.pool(seconds=3600)
print(p.results(p.submit([("pid",)]))[0].value, flush=True)
p.results(p.submit([("spin",)]))
"""
  parent = subprocess.Popen(
      [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
  )
  worker = int(parent.stdout.readline())
  time.sleep(0.3)
  assert os.path.exists(f"/proc/{worker}")
  parent.kill()
  parent.wait()
  assert gone(worker)


def test_arguments_are_checked():
  for path in (
      "",
      "test_workers",
      "test_workers:nothing",
      "no.such:thing",
      ":f",
  ):
    with pytest.raises(ValueError, match="names no function"):
      workers.Pool(path)
  for limit in ("workers", "seconds", "megabytes"):
    with pytest.raises(ValueError, match=f"{limit} = 0"):
      workers.Pool("misbehaviour:behave", **{limit: 0})


def test_failures_are_counted_over_batches():
  with pool() as p:
    for _ in range(2):
      p.results(p.submit([("exit",), (1,), ("fail",)]))
    assert p.failures == collections.Counter(crash=2, error=2)
