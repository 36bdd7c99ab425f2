"""Stop texts: where published evaluations end the response of a base model.

A base model rarely ends after its answer: it continues with a next example, or
with a next function. Evaluations of base models therefore cut a response at a
text, such as the line between two examples of the prompt. The stop texts of
HumanEval and MBPP are in `data/known_sets.py`, those of FOLIO in
`data/published.py`. `verifiers.code.completion` says where they count.
"""

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_reason import tasks
from rl_reason.base.structs import Rollouts
from rl_reason.data import published, templates, tokenizer
from rl_reason.verifiers import code


def of_row(row: tasks.Row, style: str) -> tuple[str, ...]:
  """The stop texts of the response to a row; () without any.

  Those of a known set count with its published prompt: other prompts ask for
  another form of a response. A user's rows of code have their own.

  Args:
    row: of a file.
    style: data.template.
  """
  protocol = published.PUBLISHED.get(row.source)
  if protocol and not templates.choose(style, row.kind).published:
    return ()
  found = protocol.stop if protocol else ()
  return found or (code.stop_texts(row.answer) if row.kind == "code" else ())


def cut(
    tok: Any, rollouts: Rollouts, stop_B: Sequence[tuple[str, ...]]
) -> tuple[Rollouts, list[str]]:
  """Ends responses at their first stop text.

  A response keeps the tokens up to the stop text, at least one, and is not
  truncated, even if it goes on to the maximum length. Its last token may have
  the beginning of the stop text, which is not in the text that is returned.

  Args:
    tok: the tokenizer.
    rollouts: B responses of a single turn, on the host.
    stop_B: stop texts of each response.

  Returns:
    the responses, and their texts without what follows.
  """
  slots = rollouts.mask_BT.shape[1]
  tokens_BT = rollouts.tokens_BL[:, -slots:]
  lengths_B = rollouts.lengths_B.copy()
  truncated_B = rollouts.truncated_B.copy()
  texts = tokenizer.decode(tok, tokens_BT, lengths_B)
  for b, (text, stop) in enumerate(zip(texts, stop_B, strict=True)):
    kept = code.completion(text, stop)
    if kept == text:
      continue

    def is_whole(length: int, b=b, kept=kept) -> bool:
      [part] = tokenizer.decode(tok, tokens_BT[b : b + 1], [length])
      return part.startswith(kept)

    lengths = range(1, lengths_B[b])
    lengths_B[b] = 1 + bisect.bisect_left(lengths, True, key=is_whole)
    truncated_B[b], texts[b] = False, kept
  mask_BT = rollouts.mask_BT & (np.arange(slots) < lengths_B[:, None])
  return (
      rollouts.replace(
          mask_BT=mask_BT, lengths_B=lengths_B, truncated_B=truncated_B
      ),
      texts,
  )
