"""Files of samples to learn from: results of --stage=generate, and ratings.

Fields such as `sft.samples` list sources as `data.train` does. They work with
any task: a prompt is used unchanged, as text or as the turns of a chat.
"""

import collections
import hashlib
import itertools
import json
import operator
import pathlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import grain

from rl_reason.data import datasets, pipelines, templates, tokenizer

Texts = tuple[str, ...]  # a prompt, its response, and a rejected response
HELD_OUT = 10  # one prompt in ten is held out, of preference pairs
FIRST_ID = 2**30  # of stored groups; the prompts of a run count from 0


def read(
    field: str,
    sources: str,
    tok,
    slots: tuple[int, int],
    say: Callable[[str], None],
    *,
    pairs: bool = False,
    revisions: Mapping[str, str] = datasets.EMPTY,
) -> tuple[list[list[Texts]], list[float]]:
  """Returns the distinct rows of each source, and the weights of the sources.

  Args:
    field: field of the config, for messages.
    sources: sources in the syntax of data.train.
    tok: the tokenizer.
    slots: maximum number of tokens of prompts, and of responses with EOS.
    say: shows a message.
    pairs: whether rows have `chosen` and `rejected` instead of `response`.
    revisions: revisions of repositories on the hub by their ids.

  Raises:
    DataError: no row of a source is left.
  """
  names = ("chosen", "rejected") if pairs else ("response",)
  parts, weights = [], []
  for source, weight in datasets.parse_all(sources, "train", revisions):
    # Leaving out a damaged file would silently change the mixture.
    verify(pathlib.Path(source.place))
    raw = [row or {} for _, row in datasets.read(source)]
    rows = [_texts(row, names, tok) for row in raw]
    good = list(dict.fromkeys(x for x in rows if isinstance(x, tuple)))
    # All texts in one call, which tokenizers encode in parallel. A rejected
    # response has no EOS.
    texts = [x for row in good for x in row]
    ids = iter(tokenizer.encode(tok, texts) if texts else ())
    limits = slots[0], *(slots[1] - (name != "rejected") for name in names)
    kept = []
    for row in good:
      prompt, *others = itertools.islice(ids, len(row))
      sizes = map(len, (tokenizer.begun(tok, prompt), *others))
      if all(map(operator.le, sizes, limits)):
        kept.append(row)
    # Rows that are left out are counted by reason, since they matter.
    left_out = collections.Counter(x for x in rows if isinstance(x, str))
    left_out["are repeated"] = len(rows) - left_out.total() - len(good)
    left_out["are longer than rollout.max_prompt or rollout.max_tokens"] = len(
        good
    ) - len(kept)
    why = [f"{count:,} {reason}" for reason, count in left_out.items() if count]
    text = f"{len(kept):,} of {len(rows):,} rows of {source.text}"
    text += f" ({', '.join(why)})" * bool(why)
    if not kept:
      raise datasets.DataError(
          f"{field}: {text}: none is left; raise generate.prompts or"
          " generate.samples, or choose another source"
      )
    say(f"{field}: {text}")
    unjudged = len(
        {
            row
            for row, fields in zip(rows, raw, strict=True)
            if fields.get("answer") not in (None, "")
            and fields.get("correct") is None
        }.intersection(kept)
    )
    if unjudged and not pairs:
      say(
          f"warning: {field}: {unjudged:,} of the {len(kept):,} rows of"
          f" {source.text} that are left have an answer and no verdict"
          " (correct), and are imitated unverified: name the source in"
          " data.train, whose responses are verified"
      )
    parts.append(kept)
    weights.append(weight)
  if any(weights):
    return parts, [1.0 if x is None else x for x in weights]
  return parts, [float(len(x)) for x in parts]  # rows equally often


def verify(directory: pathlib.Path) -> None:
  """Compares files of --stage=generate with their manifest, if there is one.

  Raises:
    DataError: a file is missing, or has changed.
  """
  manifest = directory.with_name(f"{directory.name}.json")
  if not (directory.is_dir() and manifest.exists()):
    return
  for name, entry in json.loads(manifest.read_text())["files"].items():
    path = directory / name
    data = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
      raise datasets.DataError(
          f"{path}: is missing or damaged, says {manifest.name}; the command of"
          " --stage=generate that made it writes it again"
      )


def _texts(row: dict[str, Any], names: Texts, tok) -> Texts | str:
  """The texts of a row, or the reason to leave the row out."""
  prompt = row.get("prompt")
  texts = [x for x in map(row.get, names) if isinstance(x, str)]
  if not prompt or len(texts) < len(names):
    return f"lack prompt, {', '.join(names)}"
  if row.get("truncated"):
    return "have no end"
  if row.get("correct") is False and "rejected" not in names:
    return "are incorrect"
  try:
    return (rendered(prompt, tok), *texts)
  except (templates.PromptError, TypeError, ValueError) as e:
    return f"have a prompt that cannot be rendered: {e}"


def rendered(prompt: Any, tok) -> str:
  """A prompt as the model reads it: a text, or the turns of a chat.

  Raises:
    PromptError, TypeError, ValueError: the turns cannot be rendered.
  """
  if isinstance(prompt, str):
    return prompt
  return templates.render([dict(x) for x in prompt], tok, chat=True)


def split(
    field: str,
    parts: list[list[Texts]],
) -> tuple[list[list[Texts]], list[list[Texts]]]:
  """Splits rows into training rows and held-out rows, by a hash of the prompt.

  One prompt in HELD_OUT is held out. `field` names the sources, for messages.

  Raises:
    DataError: a source has too few prompts.
  """
  prompts = sorted(
      {row[0] for part in parts for row in part},
      key=lambda text: (zlib.crc32(text.encode()), text),
  )
  held_out = set(prompts[: -(-len(prompts) // HELD_OUT)])
  learned, held = (
      [[x for x in part if (x[0] in held_out) == out] for part in parts]
      for out in (False, True)
  )
  if not all(learned):
    raise datasets.DataError(
        f"{field}: a source has pairs of too few prompts, of which one in ten"
        " is held out; raise generate.prompts"
    )
  return learned, held


def iterate(
    parts: list[list[Texts]], weights: list[float], seed: int, batch: int
) -> grain.DatasetIterator:
  """An endless, checkpointable iterator over batches of the mixture."""
  return pipelines.iterate(pipelines.mix(parts, weights, seed), batch)
