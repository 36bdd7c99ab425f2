"""grain pipelines: problems and demonstrations, resumable to the row."""

import grain
import numpy as np

from rl_reason import tasks, tokenizer
from rl_reason.structs import Prompts

ENDLESS = 2**31 - 1  # ids are int32


class Problems(grain.sources.RandomAccessDataSource):
  """Training rows made from their index: no file, no memory, no order."""

  def __init__(self, task, levels, seed: int):
    self._task, self._levels, self._seed = task, tuple(levels), seed

  def __len__(self):
    return ENDLESS

  def __getitem__(self, index) -> tuple[int, tasks.Row, np.random.Generator]:
    rng = np.random.default_rng((self._seed, int(index)))
    row = tasks.draw(self._task, rng, self._levels, evaluation=False)
    return int(index), row, rng


def _iterator(dataset, batch: int):
  dataset = dataset.batch(batch, batch_fn=list)
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
  return iter(dataset.to_iter_dataset(options))


def prompts(source: Problems, batch: int):
  """Endless batches: lists of (id, row); a checkpointable grain iterator."""
  return _iterator(
      grain.MapDataset.source(source).map(lambda x: x[:2]), batch
  )


def demonstrations(task, levels, seed: int, batch: int, mixture: dict):
  """Endless batches: lists of (prompt, response) in a mixture of styles.

  Args:
    task: the task's module.
    levels: difficulties, drawn evenly.
    seed: decides every row.
    batch: rows a batch.
    mixture: weight of each style of the task; they need not sum to 1.
  """
  styles = sorted(mixture)
  share = np.array([mixture[s] for s in styles], float)
  share /= share.sum()

  def demonstrate(item):
    _, row, rng = item
    style = styles[rng.choice(len(styles), p=share)]
    return row.prompt, task.demonstrate(row, style, rng)

  source = grain.MapDataset.source(Problems(task, levels, seed))
  return _iterator(source.map(demonstrate), batch)


def pack_prompts(tok, texts: list[str], ids, slots: int) -> Prompts:
  """Left-padded prompts.

  Raises:
    ValueError: a prompt is longer than `slots` tokens.
  """
  tokens_NP = np.full((len(texts), slots), tok.pad_token_id, np.int32)
  start_N = np.zeros(len(texts), np.int32)
  for n, row in enumerate(tokenizer.encode(tok, texts)):
    if len(row) > slots:
      raise ValueError(
          f"prompt {texts[n]!r} has {len(row)} tokens, rollout.max_prompt ="
          f" {slots}: raise it"
      )
    start_N[n] = slots - len(row)
    tokens_NP[n, start_N[n] :] = row
  return Prompts(tokens_NP, start_N, np.asarray(ids, np.int32))


def pack_demonstrations(tok, pairs, prompt_slots: int, response_slots: int):
  """Prompts and responses as rows to train on.

  Args:
    tok: the tokenizer.
    pairs: (prompt, response) texts; EOS is added to each response.
    prompt_slots: P.
    response_slots: T; a longer response is cut, and its EOS with it.

  Returns:
    tokens [B, P + T] int32, start [B] int32, mask [B, T] bool.
  """
  texts, responses = zip(*pairs, strict=True)
  p = pack_prompts(tok, list(texts), range(len(texts)), prompt_slots)
  tokens_BT = np.full(
      (len(texts), response_slots), tok.pad_token_id, np.int32
  )
  mask_BT = np.zeros((len(texts), response_slots), bool)
  for b, row in enumerate(tokenizer.encode(tok, list(responses))):
    row = (row + [tok.eos_token_id])[:response_slots]
    tokens_BT[b, : len(row)] = row
    mask_BT[b, : len(row)] = True
  return np.concatenate([p.tokens_NP, tokens_BT], 1), p.start_N, mask_BT
