"""Graded groups that --stage=generate stored, as rows of experience.

With generate.keep = "all" its files have every response of a group with tokens,
log-probs of the sampler and verdict: what replay needs of an older group. They
lack the scores of single reward functions.
"""

import itertools
import json
import pathlib
import zlib
from typing import Any

import numpy as np

from rl_reason.base.structs import Experience, Rollouts
from rl_reason.collect.experience import graded
from rl_reason.data import datasets, pipelines, sample_files
from rl_reason.data.sample_files import FIRST_ID

COLUMNS = "prompt", "ids", "logps", "correct", "truncated"


def read(
    where: str,
    directory: pathlib.Path,
    tok: Any,
    *,
    group_size: int,
    temperature: float,
    max_prompt: int,
    max_tokens: int,
) -> Experience:
  """The groups of a directory, as if they were sampled in this step.

  Args:
    where: 'field = value', for messages.
    directory: of --stage=generate.
    tok: the tokenizer.
    group_size: responses to a prompt.
    temperature: of sampling in this run, of which the log-probs must be.
    max_prompt: P, tokens.
    max_tokens: T, tokens.

  Raises:
    DataError: the files are damaged, lack log-probs, or are of another group
      size, temperature or tokenizer.
  """
  manifest = directory.with_name(f"{directory.name}.json")
  if not manifest.exists():
    raise datasets.DataError(
        f"{where}: is no directory of --stage=generate: name one, such as"
        " WORKDIR/generated/STEP"
    )
  fields = json.loads(manifest.read_text())["fields"]
  for name, value in (
      ("generate.keep", "all"),
      ("generate.samples", group_size),
      ("generate.temperature", temperature),
      ("generate.top_p", 1.0),
      ("generate.top_k", 0),
      ("generate.min_p", 0.0),
      ("generate.repetition_penalty", 1.0),
  ):
    if fields.get(name, value) != value:
      raise datasets.DataError(
          f"{where}: was generated with {name} = {fields[name]!r}; replay"
          f" in this run needs {value!r}: generate again"
      )
  sample_files.verify(directory)
  (source, _), *_ = datasets.parse_all(str(directory), "train")
  lines = [row or {} for _, row in datasets.read(source)]
  if lacking := [x for x in COLUMNS if any(x not in row for row in lines)]:
    raise datasets.DataError(
        f"{where}: rows lack {', '.join(lacking)}: generate them again with"
        " --stage=generate and generate.keep = 'all'"
    )
  found = []
  for prompt, of_prompt in itertools.groupby(lines, lambda x: x["prompt"]):
    rows = list(of_prompt)  # of one group, or of several in a row
    text = sample_files.rendered(prompt, tok)
    for n in range(0, len(rows), group_size):
      found.append((text, rows[n : n + group_size]))
  if not found or any(len(rows) != group_size for _, rows in found):
    raise datasets.DataError(
        f"{where}: its rows are no groups of {group_size} responses: generate"
        f" them again with --stage=generate and generate.samples = {group_size}"
    )
  _check_tokens(
      where, [row["ids"] for _, x in found for row in x], tok, max_tokens
  )
  return _experience(tok, found, max_prompt, max_tokens)


def _check_tokens(
    where: str, ids: list[list[int]], tok: Any, max_tokens: int
) -> None:
  """Refuses responses that this run could not have sampled."""
  if (longest := max(map(len, ids))) > max_tokens:
    raise datasets.DataError(
        f"{where}: has responses of {longest} tokens: raise rollout.max_tokens"
    )
  known = set(tok.get_vocab().values())
  if not all(known.issuperset(x) for x in ids):
    raise datasets.DataError(
        f"{where}: its tokens are of another tokenizer: generate again with the"
        " tokenizer of this run"
    )


def _experience(
    tok: Any, found: list[tuple[str, list[dict]]], max_prompt: int, max_tokens
) -> Experience:
  """Rows of experience of (prompt, its responses)."""
  texts, group_size = [text for text, _ in found], len(found[0][1])
  prompts = pipelines.pack_prompts(tok, texts, range(len(texts)), max_prompt)
  responses = [row for _, rows in found for row in rows]
  shape = len(responses), max_tokens
  tokens_BT = np.full(shape, tok.pad_token_id, np.int32)
  mask_BT, logps_BT = np.zeros(shape, bool), np.zeros(shape, np.float32)
  for b, row in enumerate(responses):
    length = len(row["ids"])
    tokens_BT[b, :length], logps_BT[b, :length] = row["ids"], row["logps"]
    mask_BT[b, :length] = True

  def each(values_N) -> np.ndarray:
    return np.repeat(values_N, group_size, 0)

  # A verdict is None where the verifier failed.
  verdicts = [-1 if x["correct"] is None else x["correct"] for x in responses]
  return graded(
      Rollouts(
          tokens_BL=np.concatenate([each(prompts.tokens_NP), tokens_BT], 1),
          start_B=each(prompts.start_N),
          ids_B=each(FIRST_ID + np.arange(len(texts), dtype=np.int32)),
          mask_BT=mask_BT,
          logps_BT=logps_BT,
          lengths_B=mask_BT.sum(1, dtype=np.int32),
          truncated_B=np.array([x["truncated"] for x in responses], bool),
      ),
      np.array(verdicts, np.float32),
      types_B=np.array([x.get("difficulty", 0) for x in responses], np.int32),
      problems_B=each(
          np.array([zlib.crc32(x.encode()) >> 1 for x in texts], np.int32)
      ),
  )
