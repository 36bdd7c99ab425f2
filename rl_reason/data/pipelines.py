"""grain pipelines of problems and demonstrations, resumable to the row."""

import json
import pathlib
import zlib

import grain
import numpy as np

from rl_reason import tasks
from rl_reason.data import datasets, tokenizer
from rl_reason.structs import Prompts

ENDLESS = 2**31 - 1  # ids are int32


class Problems(grain.sources.RandomAccessDataSource):
  """Training rows generated from their index: (id, row, generator) by id."""

  def __init__(self, task, levels, seed: int, *, evaluation: bool = False):
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
    fields = {name: record[name] for name in tasks.Row._fields}
    return tasks.Row(**fields)

  def has_demonstration(self, index: int, rejected: bool) -> bool:
    """Whether a row has a response to imitate, and a rejected one if asked."""
    row = self[index]
    return bool(row.response and (row.rejected or not rejected))


def prepared(
    directory: pathlib.Path, use: str
) -> tuple[list[Prepared], list[float]]:
  """The sources in a directory of --stage=prepare, and their weights.

  Args:
    directory: that holds data.json.
    use: 'train' or 'evaluate'.

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


def _mix(sources: list, weights: list[float], seed: int) -> grain.MapDataset:
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
  its own, with other sampling noise.

  Args:
    sources: to mix.
    weights: of the sources; they need not sum to 1.
    seed: of the order.
  """

  def __init__(self, sources: list[Prepared], weights: list[float], seed: int):
    self._rows = _mix(sources, weights, seed)

  def __len__(self):
    return ENDLESS

  def __getitem__(self, index) -> tuple[int, tasks.Row]:
    return int(index), self._rows[int(index)]


def evaluation_sets(
    directory: pathlib.Path, count: int
) -> dict[str, list[tasks.Row]]:
  """Evaluation rows by the name of their set.

  The order is random but fixed: the first n rows are a fair sample.

  Args:
    directory: of --stage=prepare.
    count: maximum number of rows of a set.
  """
  sets: dict[str, list[tasks.Row]] = {}
  for part in prepared(directory, "evaluate")[0]:
    order = np.random.default_rng(20261121).permutation(len(part))
    rows = [part[i] for i in order[:count]]
    name = pathlib.Path(rows[0].source).name.partition(".")[0]
    sets[name if name not in sets else f"{name}-{len(sets)}"] = rows
  return sets


def prepared_pairs(
    sources: list[Prepared],
    weights: list[float],
    seed: int,
    batch: int,
    *,
    rejected: bool = False,
):
  """Endless batches of (prompt, response), or of preference pairs.

  Args:
    sources: to mix.
    weights: of the sources.
    seed: of the order.
    batch: rows of a batch.
    rejected: whether to give (prompt, response, rejected response).

  Raises:
    DataError: a source has no such row.
  """
  parts = []
  for number, source in enumerate(sources):
    rows = [
        i for i in range(len(source)) if source.has_demonstration(i, rejected)
    ]
    if not rows:
      raise datasets.DataError(
          f"data.train: no row of source {number} has"
          f" {'a rejected response' if rejected else 'a response'} to learn"
          " from; name its columns in data.columns, or skip this stage"
          " (sft.skill.steps = 0)"
      )
    parts.append([(number, i) for i in rows])

  def texts(position):
    number, index = position
    row = sources[number][index]
    pair = row.prompt, row.response
    return (*pair, row.rejected) if rejected else pair

  return _iterator(_mix(parts, weights, seed).map(texts), batch)


def _iterator(dataset, batch: int):
  dataset = dataset.batch(batch, batch_fn=list)
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
  return iter(dataset.to_iter_dataset(options))


def prompts(source: Problems | Mixed, batch: int):
  """Endless batches: lists of (id, row); a checkpointable grain iterator."""
  return _iterator(grain.MapDataset.source(source).map(lambda x: x[:2]), batch)


def demonstrations(task, levels, seed: int, batch: int, mixture: dict):
  """Endless batches: lists of (prompt, response) in a mixture of styles.

  Args:
    task: with demonstrations.
    levels: difficulties, drawn uniformly.
    seed: of all rows.
    batch: rows of a batch.
    mixture: style of the task -> weight; they need not sum to 1.
  """

  def demonstrate(item):
    _, row, rng = item
    style = _style(rng, mixture)
    return row.prompt, task.demonstrate(row, style, rng)

  source = grain.MapDataset.source(Problems(task, levels, seed))
  return _iterator(source.map(demonstrate), batch)


def preferences(
    task,
    levels,
    seed: int,
    batch: int,
    chosen: dict,
    rejected: dict,
    *,
    evaluation: bool = False,
):
  """Endless batches: lists of (prompt, correct response, incorrect response).

  Args:
    task: with demonstrations.
    levels: difficulties, drawn uniformly.
    seed: of all rows.
    batch: rows of a batch.
    chosen: style -> weight, of correct responses; an incorrect draw is
      repeated.
    rejected: style -> weight, of incorrect responses.
    evaluation: whether to draw held-out prompts.

  Raises:
    DataError: the styles give no such response in a thousand draws.
  """

  def respond(row, rng, mixture, correct):
    for _ in range(1000):
      text = task.demonstrate(row, _style(rng, mixture), rng)
      if task.verify(text, row) == correct:
        return text
    raise datasets.DataError(
        f"no {'correct' if correct else 'incorrect'} response to"
        f" {row.prompt!r} in 1000 draws of {mixture}: choose other styles"
    )

  def pair(item):
    _, row, rng = item
    better = respond(row, rng, chosen, True)
    return row.prompt, better, respond(row, rng, rejected, False)

  source = Problems(task, levels, seed, evaluation=evaluation)
  return _iterator(grain.MapDataset.source(source).map(pair), batch)


def _style(rng: np.random.Generator, mixture: dict) -> str:
  """A random style of the mixture; '' for a task without styles."""
  styles = sorted(mixture)
  if not styles:
    return ""
  share = np.array([mixture[s] for s in styles], float)
  return styles[rng.choice(len(styles), p=share / share.sum())]


def pack_prompts(tok, texts: list[str], ids, slots: int) -> Prompts:
  """Prompts padded on the left.

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
  """Prompts, padded on the left, and responses, padded on the right.

  Args:
    tok: the tokenizer.
    pairs: (prompt, response) texts; EOS is added to each response.
    prompt_slots: P.
    response_slots: T; a longer response is truncated, and has no EOS then.

  Returns:
    tokens [B, P + T] int32, start [B] int32, mask [B, T] bool.
  """
  texts, responses = zip(*pairs, strict=True)
  p = pack_prompts(tok, list(texts), range(len(texts)), prompt_slots)
  tokens_BT = np.full((len(texts), response_slots), tok.pad_token_id, np.int32)
  mask_BT = np.zeros((len(texts), response_slots), bool)
  for b, row in enumerate(tokenizer.encode(tok, list(responses))):
    row = (row + [tok.eos_token_id])[:response_slots]
    tokens_BT[b, : len(row)] = row
    mask_BT[b, : len(row)] = True
  return np.concatenate([p.tokens_NP, tokens_BT], 1), p.start_N, mask_BT
