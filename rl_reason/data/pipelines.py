"""grain pipelines: problems and demonstrations, resumable to the row."""

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
  """Training rows made from their index: no file, no memory, no order."""

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

  Args:
    path: of the file.

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

  def teaches(self, index: int, rejected: bool) -> bool:
    """Whether a row has a response to learn from, and a worse one if wanted."""
    row = self[index]
    return bool(row.response and (row.rejected or not rejected))


def prepared(
    directory: pathlib.Path, use: str
) -> tuple[list[Prepared], list[float]]:
  """The sources of a directory, and their weights.

  Args:
    directory: of --stage=prepare.
    use: 'train' or 'evaluate'.

  Raises:
    DataError: there is no such directory, or a file of it has changed.
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
  out: list[Prepared] = []
  for file, kept in files:
    out.append(Prepared(directory / file))
    if len(out[-1]) != kept:
      raise datasets.DataError(
          f"{directory / file}: has {len(out[-1])} rows and not {kept};"
          f" remove {directory}, run --stage=prepare again"
      )
  return out, weights if use == "train" else [1.0] * len(out)


def _mix(sources: list, weights: list[float], seed: int) -> grain.MapDataset:
  """Each source shuffled anew in each of its epochs, and all of them mixed."""
  # Epoch e is shuffled with seed + e: neighbouring seeds would repeat orders.
  parts = [
      grain.MapDataset.source(source)
      .shuffle(seed=zlib.crc32(f"{seed} {number}".encode()))
      .repeat()
      for number, source in enumerate(sources)
  ]
  return grain.MapDataset.mix(parts, weights)


class Mixed(grain.sources.RandomAccessDataSource):
  """Rows of files, shuffled and mixed, without end: (id, row) by id.

  An id is a place in the stream, so that a row that comes again in another
  epoch is another prompt, with other noise.

  Args:
    sources: to mix.
    weights: share of each in the stream; they need not sum to 1.
    seed: decides the order.
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
  """Rows of the files to evaluate on, by the name of their set.

  They come in an order that is random but always the same: the first n of them
  are a fair sample.

  Args:
    directory: of --stage=prepare.
    count: rows of a set, at most.
  """
  out: dict[str, list[tasks.Row]] = {}
  for part in prepared(directory, "evaluate")[0]:
    order = np.random.default_rng(20261121).permutation(len(part))
    rows = [part[i] for i in order[:count]]
    name = pathlib.Path(rows[0].source).name.partition(".")[0]
    out[name if name not in out else f"{name}-{len(out)}"] = rows
  return out


def prepared_pairs(
    sources: list[Prepared],
    weights: list[float],
    seed: int,
    batch: int,
    *,
    rejected: bool = False,
):
  """Endless batches of what is to be learnt from, shuffled and mixed.

  Args:
    sources: to mix.
    weights: share of each in the stream.
    seed: decides the order.
    batch: rows a batch.
    rejected: (prompt, response, rejected) of preference pairs, and not
      (prompt, response).

  Raises:
    DataError: a source has no such row.
  """
  parts = []
  for number, source in enumerate(sources):
    rows = [i for i in range(len(source)) if source.teaches(i, rejected)]
    if not rows:
      raise datasets.DataError(
          f"data.train: no row of source {number} has"
          f" {'a rejected response' if rejected else 'a response'} to learn"
          " from; name its columns in data.columns, or skip this stage"
          " (sft.skill.steps = 0)"
      )
    parts.append([(number, i) for i in rows])

  def texts(at):
    row = sources[at[0]][at[1]]
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
    task: the task's module.
    levels: difficulties, drawn evenly.
    seed: decides every row.
    batch: rows a batch.
    mixture: weight of each style of the task; they need not sum to 1.
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
  """Endless batches: lists of (prompt, right response, wrong response).

  Args:
    task: the task's module.
    levels: difficulties, drawn evenly.
    seed: decides every row.
    batch: rows a batch.
    chosen: weights of the styles of right responses; a draw that is wrong is
      repeated.
    rejected: the same for wrong ones.
    evaluation: of the held-out prompts.

  Raises:
    DataError: the styles give no such response in a thousand draws.
  """

  def respond(row, rng, mixture, right):
    for _ in range(1000):
      text = task.demonstrate(row, _style(rng, mixture), rng)
      if task.verify(text, row) == right:
        return text
    raise datasets.DataError(
        f"no {'right' if right else 'wrong'} response to {row.prompt!r} in 1000"
        f" draws of {mixture}: choose other styles"
    )

  def pair(item):
    _, row, rng = item
    good = respond(row, rng, chosen, True)
    return row.prompt, good, respond(row, rng, rejected, False)

  source = Problems(task, levels, seed, evaluation=evaluation)
  return _iterator(grain.MapDataset.source(source).map(pair), batch)


def _style(rng: np.random.Generator, mixture: dict) -> str:
  """One of the styles, by weight."""
  styles = sorted(mixture)
  share = np.array([mixture[s] for s in styles], float)
  return styles[rng.choice(len(styles), p=share / share.sum())]


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
  tokens_BT = np.full((len(texts), response_slots), tok.pad_token_id, np.int32)
  mask_BT = np.zeros((len(texts), response_slots), bool)
  for b, row in enumerate(tokenizer.encode(tok, list(responses))):
    row = (row + [tok.eos_token_id])[:response_slots]
    tokens_BT[b, : len(row)] = row
    mask_BT[b, : len(row)] = True
  return np.concatenate([p.tokens_NP, tokens_BT], 1), p.start_N, mask_BT
