"""Responses to imitate (SFT), and pairs of them to compare."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np

from rl_reason import features
from rl_reason.base import config as config_lib
from rl_reason.checks import config_facts
from rl_reason.data import datasets, pipelines, sample_files, tokenizer
from rl_reason.devices.randomness import host_seed


def batches(
    rows: pipelines.RowSource,
    purpose: str,
    batch: int,
    mixture: dict,
    counted: Callable[[int], None] = lambda _: None,
):
  """An iterator over batches of (prompt, response) to imitate.

  A response may be a list: texts of the policy, and others between.

  Args:
    rows: of the run.
    purpose: decides the seed.
    batch: rows of a batch.
    mixture: style of the task -> weight; they need not sum to 1.
    counted: called with the number of rows of files that have a response.

  Raises:
    DataError: a file has no row with a response.
  """
  seed = host_seed(rows.seed, purpose)
  if rows.files is not None:
    parts, weights = pipelines.prepared(rows.files, "train")
    return pipelines.iterate(_pairs(parts, weights, seed, counted), batch)

  def demonstrate(item):
    _, row, rng = item
    response = rows.task.demonstrate(row, _style(rng, mixture), rng)
    if isinstance(response, str):
      return row.prompt, response
    found = (
        one.demonstration(rows.task, row, response, rng)
        for one in features.declared()
    )
    return next(x for x in found if x is not None)

  dataset = grain.MapDataset.source(rows.problems(seed)).map(demonstrate)
  return pipelines.iterate(dataset, batch)


def preferences(
    rows: pipelines.RowSource, batch: int, chosen, rejected, *, evaluation: bool
):
  """An iterator over batches of (prompt, chosen, rejected response).

  Args:
    rows: of the run.
    batch: rows of a batch.
    chosen: style -> weight, of correct responses of the task; an incorrect
      draw is repeated.
    rejected: style -> weight, of incorrect responses.
    evaluation: whether to take held-out prompts.

  Raises:
    DataError: the styles give no such response in a thousand draws.
  """
  seed = host_seed(rows.seed, f"preferences {evaluation}")
  if rows.files is not None:
    use = "evaluate" if evaluation else "train"
    parts, weights = pipelines.prepared(rows.files, use)
    dataset = _pairs(parts, weights, seed, field=f"data.{use}", rejected=True)
    return pipelines.iterate(dataset, batch)

  def respond(row, rng, mixture, correct):
    for _ in range(1000):
      text = rows.task.demonstrate(row, _style(rng, mixture), rng)
      if rows.task.verify(text, row) == correct:
        return text
    raise datasets.DataError(
        f"no {'correct' if correct else 'incorrect'} response to"
        f" {row.prompt!r} in 1000 draws of {mixture}: choose other styles"
    )

  def pair(item):
    _, row, rng = item
    better = respond(row, rng, chosen, True)
    return row.prompt, better, respond(row, rng, rejected, False)

  source = rows.problems(seed, evaluation=evaluation)
  return pipelines.iterate(grain.MapDataset.source(source).map(pair), batch)


def pairs(
    c,
    section: str,
    rows: pipelines.RowSource,
    tok: Any,
    *,
    evaluation: bool,
    say: Callable[[str], None],
) -> tuple[Iterator, float]:
  """Endless batches of (prompt, chosen, rejected), to train on or held out.

  Args:
    c: the config.
    section: its section with batch, chosen, rejected and samples: sources of
      pairs, or '' for `preferences`.
    rows: of the run.
    tok: the tokenizer.
    evaluation: whether to take held-out prompts.
    say: shows a line.

  Returns:
    the iterator, and the number of different pairs: inf if they are generated.

  Raises:
    DataError: there are no such pairs.
  """
  part = config_lib.at(c, section)
  if not part.samples:
    chosen, rejected = (
        config_facts.styles(x, rows.task) for x in (part.chosen, part.rejected)
    )
    stream = preferences(
        rows, part.batch, chosen, rejected, evaluation=evaluation
    )
    return stream, math.inf
  field = f"{section}.samples"
  parts, weights = sample_files.read(
      field,
      part.samples,
      tok,
      (c.rollout.max_prompt, c.rollout.max_tokens),
      say,
      pairs=True,
      revisions=config_facts.revisions(c),
  )
  parts, held_out = sample_files.split(field, parts)
  if evaluation:
    parts, weights = [[x for part in held_out for x in part]], [1.0]
  seed = host_seed(c.seed, f"samples of pairs {evaluation}")
  stream = sample_files.iterate(parts, weights, seed, part.batch)
  return stream, sum(map(len, parts))


def _style(rng: np.random.Generator, mixture: dict) -> str:
  """A random style of the mixture; '' for a task without styles."""
  styles = sorted(mixture)
  if not styles:
    return ""
  share = np.array([mixture[s] for s in styles], float)
  return styles[rng.choice(len(styles), p=share / share.sum())]


def _pairs(
    sources: list[pipelines.Prepared],
    weights: list[float],
    seed: int,
    counted: Callable[[int], None] = lambda _: None,
    *,
    field: str = "data.train",
    rejected: bool = False,
) -> grain.MapDataset:
  """(prompt, response) of a mixture, or (prompt, response, rejected).

  `field` names the sources, for messages.

  Raises:
    DataError: a source has no row with these texts.
  """

  def texts(row):
    pair = row.prompt, row.response
    return (*pair, row.rejected) if rejected else pair

  positions = []
  for number, source in enumerate(sources):
    rows = range(len(source))
    found = [(number, i) for i in rows if all(texts(source[i])[1:])]
    if not found:
      remedy = (
          "a chosen and a rejected response: name their columns, as in"
          " data.columns = 'chosen=better,rejected=worse', or leave the source"
          " out"
          if rejected
          else "a response to learn from: name its column, as in data.columns ="
          " 'response=text', or leave the source out; none is needed where"
          " nothing imitates responses, as with sft.steps = 0"
      )
      raise datasets.DataError(
          f"{field}: source {number + 1} has no row with {remedy}"
      )
    positions.append(found)
  counted(sum(map(len, positions)))
  mixed = pipelines.mix(positions, weights, seed)
  return mixed.map(lambda position: texts(sources[position[0]][position[1]]))


def pack_pairs(rollout, tok: Any, pairs) -> tuple[Any, Any, Any]:
  """`pack` of pairs: tokens, start and mask of 2 B rows, pairs adjacent."""
  texts = [(prompt, text) for prompt, *both in pairs for text in both]
  return pack(tok, texts, rollout.max_prompt, rollout.max_tokens)


def pack(
    tok,
    pairs,
    prompt_slots: int,
    response_slots: int,
    encode: Callable[[str], list[int]] | None = None,
):
  """Prompts, padded on the left, and responses, padded on the right.

  Args:
    tok: the tokenizer.
    pairs: (prompt, response) texts; EOS is added to each response that has no
      end. A response may be a list: texts of the policy with others between.
      Each text of the policy gets an EOS, the others are no part of the mask.
    prompt_slots: P.
    response_slots: T; a longer response is truncated, and has no EOS then.
    encode: encodes a text between; None: as those of the policy.

  Returns:
    tokens [B, P + T] int32, start [B] int32, mask [B, T] bool.
  """
  texts, responses = zip(*pairs, strict=True)
  ids = range(len(texts))
  p = pipelines.pack_prompts(tok, list(texts), ids, prompt_slots)
  tokens_BT = np.full((len(texts), response_slots), tok.pad_token_id, np.int32)
  mask_BT = np.zeros((len(texts), response_slots), bool)
  parts = [[x] if isinstance(x, str) else x for x in responses]
  flat = [text for x in parts for text in x]
  encoded = iter(tokenizer.encode_after(tok, flat))
  ends = tokenizer.response_ends(tok).ids
  for b, texts_of_row in enumerate(parts):
    row: list[int] = []
    for number, text in enumerate(texts_of_row):
      part, is_own = next(encoded), number % 2 == 0
      if encode and not is_own:
        part = encode(text)
      if is_own and (not part or part[-1] not in ends):
        part = [*part, tok.eos_token_id]
      mask_BT[b, len(row) : len(row) + len(part)] = is_own
      row += part
    tokens_BT[b, : len(row)] = row[:response_slots]
  return np.concatenate([p.tokens_NP, tokens_BT], 1), p.start_N, mask_BT
