"""Sources of rows for grain, mixtures of them, and batches of tokens."""

import json
import pathlib
import zlib

import grain
import numpy as np

from rl_reason import tasks, verifiers
from rl_reason.base.structs import Prompts
from rl_reason.data import datasets, tokenizer

ENDLESS = 2**31 - 1  # ids are int32
QUARANTINE = "quarantine.jsonl"  # rows that --stage=prepare left out, and why


class Problems(grain.sources.RandomAccessDataSource):
  """Rows generated from their index: (id, row, generator) by id."""

  def __init__(self, task, levels, seed: int, evaluation: bool = False):
    self._task, self._levels, self._seed = task, tuple(levels), seed
    self._evaluation = evaluation

  def __len__(self):
    return ENDLESS

  def __getitem__(self, index) -> tuple[int, tasks.Row, np.random.Generator]:
    rng = np.random.default_rng((self._seed, int(index)))
    row = tasks.draw(self._task, rng, self._levels, evaluation=self._evaluation)
    return int(index), row, rng


class Prepared(grain.sources.RandomAccessDataSource):
  """Rows of a file that --stage=prepare has written.

  Raises:
    DataError: the file is missing or damaged.
  """

  def __init__(self, path: pathlib.Path):
    try:
      self._path = path
      self._records = grain.sources.ArrayRecordDataSource([str(path)])
    except (OSError, RuntimeError, ValueError):
      raise datasets.DataError(
          f"{path}: cannot be read; remove {path.parent} and run"
          " --stage=prepare again"
      ) from None

  def __len__(self):
    return len(self._records)

  def __getitem__(self, index) -> tasks.Row:
    record = json.loads(self._records[int(index)])
    # Prepared rows are passed on with a run, and a kind may be code to import.
    kind = record["kind"]
    if kind not in (*verifiers.KINDS, verifiers.NONE, *verifiers.OWN):
      raise datasets.DataError(
          f"{self._path}: a row is of the kind {kind!r}, which data.kind does"
          f" not name; remove {self._path.parent}"
      )
    return tasks.Row(**{name: record[name] for name in tasks.Row._fields})


def prepared(
    directory: pathlib.Path, use: str
) -> tuple[list[Prepared], list[float]]:
  """The sources that --stage=prepare wrote, and their weights.

  Args:
    directory: that holds data.json.
    use: 'train', 'evaluate' or 'validation'.

  Raises:
    DataError: there is no such directory, or one of its files has changed.
  """
  try:
    report = json.loads((directory / "data.json").read_text())
    files = [
        (str(x["file"]), x["kept"])
        for x in report["sources"]
        if x["use"] == use
    ]
    weights = list(report["weights"])
  except (OSError, ValueError, KeyError, TypeError):
    raise datasets.DataError(
        f"{directory}: has no data.json; run --stage=prepare"
    ) from None
  sources: list[Prepared] = []
  for file, kept in files:
    sources.append(Prepared(directory / file))
    if len(sources[-1]) != kept:
      raise datasets.DataError(
          f"{directory / file}: has {len(sources[-1])} rows instead of {kept};"
          f" remove {directory}, run --stage=prepare again"
      )
  return sources, weights if use == "train" else [1.0] * len(sources)


def mix(sources: list, weights: list[float], seed: int) -> grain.MapDataset:
  """Mixes sources; each one is shuffled anew in each of its epochs."""
  # Epoch e is shuffled with seed + e: consecutive seeds would repeat orders.
  parts = [
      grain.MapDataset.source(source)
      .shuffle(seed=zlib.crc32(f"{seed} {number}".encode()))
      .repeat()
      for number, source in enumerate(sources)
  ]
  return grain.MapDataset.mix(parts, weights)


class Mixed(grain.sources.RandomAccessDataSource):
  """An endless stream of rows of files, shuffled and mixed: (id, row) by id.

  An id is a position in the stream, so a row of a later epoch is a prompt of
  its own, with other sampling noise. Weights need not sum to 1.
  """

  def __init__(self, sources: list[Prepared], weights: list[float], seed: int):
    self._rows = mix(sources, weights, seed)

  def __len__(self):
    return ENDLESS

  def __getitem__(self, index) -> tuple[int, tasks.Row]:
    return int(index), self._rows[int(index)]


def iterate(dataset: grain.MapDataset, batch: int):
  """An endless, checkpointable iterator over batches: lists of items."""
  dataset = dataset.batch(batch, batch_fn=list)
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
  return iter(dataset.to_iter_dataset(options))


def pack_prompts(tok, texts: list[str], ids, slots: int) -> Prompts:
  """Prompts padded on the left.

  Raises:
    DataError: a prompt has no token, or is longer than `slots` tokens.
  """
  tokens_NP = np.full((len(texts), slots), tok.pad_token_id, np.int32)
  start_N = np.zeros(len(texts), np.int32)
  for n, row in enumerate(tokenizer.encode(tok, texts)):
    if not row:
      raise datasets.DataError(
          f"prompt {texts[n]!r} has no token, and nothing could predict the"
          " first token of a response: leave it out, or choose a tokenizer that"
          " can spell it"
      )
    if len(row) > slots:
      raise datasets.DataError(
          f"prompt {texts[n]!r} has {len(row)} tokens, rollout.max_prompt ="
          f" {slots}: raise it"
      )
    start_N[n] = slots - len(row)
    tokens_NP[n, start_N[n] :] = row
  return Prompts(tokens_NP, start_N, np.asarray(ids, np.int32))
