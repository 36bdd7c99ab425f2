"""The comparison with a real vLLM: lengths, and the numbers of the page."""

import numpy as np

from bench import real_vllm, results

ROWS = len(real_vllm.NAMES) * real_vllm.GROUP


def test_lengths_are_equal_or_have_a_heavy_tail():
  even, tail = map(real_vllm.limits, real_vllm.LENGTHS)
  assert (even == real_vllm.LONGEST).all() and len(even) == len(tail) == ROWS
  assert tail.min() >= 1 and tail.max() <= real_vllm.LONGEST
  assert np.median(tail) < tail.mean() < real_vllm.LONGEST / 3


def turn(system, lengths, seed, tokens, seconds, cpu):
  numbers = dict(tokens=tokens, seconds=seconds, cpu=cpu)
  return dict(system=system, lengths=lengths, seed=seed) | numbers


def test_the_speed_of_each_kind_of_lengths():
  turns = []
  for seed, slower in ((1, 1.0), (2, 2.0)):
    turns.append(turn("ours", "even", seed, 800, 1.0, 2.0))
    turns.append(turn("vllm", "even", seed, 800, 2.0 * slower, 4.0))
    turns.append(turn("ours", "tail", seed, 100, 1.0, 2.0))
    turns.append(turn("vllm", "tail", seed, 100, 0.5 * slower, 3.0))
  known = results.read("vllm")
  page = "\n".join(real_vllm.page(known | dict(turns=turns)))
  assert "3.00 (2.00 to 4.00) (equal lengths)" in page
  assert "0.75 (0.50 to 1.00) (log-normal lengths)" in page
  assert (
      "| equal lengths (800 tokens) | ours | 800 (800 to 800) | 2 (2 to 2)"
      " | 3.00 (2.00 to 4.00) |"
  ) in page
  assert "vLLM takes 1.75 times the CPU time" in page  # 2 and 1.5
  assert "Tokens per second" not in "\n".join(
      real_vllm.page(known | dict(turns=[]))
  )
