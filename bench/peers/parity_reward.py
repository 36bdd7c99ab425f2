"""The verifier of the study `parity_run`: all three trainers call it.

It has TRL's form of a reward function, which this package takes as well, and
imports nothing, so that each trainer imports it in its own environment.
"""


def correct(completions, answer, **columns):
  """1.0 for each response with exactly one `#` and the answer after it.

  Args:
    completions: responses without their EOS.
    answer: column of the data, one for each response.
    **columns: what else a trainer passes.

  Returns:
    a reward for each response.
  """
  del columns
  pairs = zip(completions, answer, strict=True)
  return [float(text.partition("#")[2] == wanted) for text, wanted in pairs]


def math(completions, answer, **columns):
  """1.0 for each conversation whose last message has the answer.

  The verifier is that of this package, which needs no other package here.

  Args:
    completions: conversations, lists of messages.
    answer: column of the data, one for each response.
    **columns: what else a trainer passes.

  Returns:
    a reward for each response.
  """
  from rl_reason.verifiers import math as verifier

  del columns
  pairs = zip(completions, answer, strict=True)
  return [float(verifier.verify(x[-1]["content"], want)) for x, want in pairs]
