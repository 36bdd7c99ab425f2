"""A tokenizer, a verifier and a config for tests of prepared data."""

import importlib
import json
import threading

import pytest
import tokenizers
import transformers

from rl_reason import verifiers
from rl_reason.checks import config_checks
from rl_reason.data import pipelines
from rl_reason.monitoring import display
from rl_reason.stages import prepare

CHAT = (
    "{% for m in messages %}<|s|>{{ m['role'] }} {{ m['content'] }}"
    "{% endfor %}<|s|>"
)
# Some reference answers, and one comparison, break the verifier. A worker
# imports it from a file.
VERIFIER = """
import os, re

def hang():
  while True:
    pass

HOSTILE = {
    "99": hang,
    "98": lambda: os._exit(1),
    "97": lambda: 1 / 0,
    "96": lambda: bytearray(1 << 40),
}

def usable(reference):
  HOSTILE.get(reference, str)()
  return re.fullmatch(r"-?\\d*\\.?\\d+", reference) is not None

def verify(text, reference):
  if text == r"\\boxed{95}":
    hang()
  return float(text.removeprefix(r"\\boxed{")[:-1]) == float(reference)
"""
FIVE = [(f"What is {i} and one more?", str(i + 1)) for i in range(5)]


def byte_tokenizer():
  """One token a byte, and the special tokens <|s|> and <|e|>."""
  level = tokenizers.pre_tokenizers.ByteLevel
  fast = tokenizers.Tokenizer(tokenizers.models.BPE())
  fast.pre_tokenizer = level(add_prefix_space=False)
  fast.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
      special_tokens=["<|s|>", "<|e|>"],
      initial_alphabet=sorted(level.alphabet()),
  )
  fast.train_from_iterator([""], trainer)
  tok = transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, bos_token="<|s|>", eos_token="<|e|>"
  )
  tok.chat_template = CHAT
  return tok


@pytest.fixture(autouse=True, scope="module")
def verifier(tmp_path_factory):
  """A module of these tests in the place of the real verifiers."""
  path = tmp_path_factory.mktemp("verifier")
  (path / "numbers_only.py").write_text(VERIFIER)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(path)
    for kind in verifiers.KINDS:
      patch.setitem(verifiers.KINDS, kind, "numbers_only")
    yield


@pytest.fixture(scope="module")
def tok_dir(tmp_path_factory):
  path = tmp_path_factory.mktemp("tokenizer")
  byte_tokenizer().save_pretrained(path)
  return str(path)


def write(path, rows):
  """JSON lines; a row may be (question, answer), a dict, or raw text."""
  lines = []
  for row in rows:
    if isinstance(row, tuple):
      row = dict(question=row[0], answer=row[1])
    lines.append(row if isinstance(row, str) else json.dumps(row))
  path.write_text("".join(f"{line}\n" for line in lines))
  return str(path)


def make_config(directory, tok_dir, train=(), evaluate=(), /, **fields):
  """A config of these rows; fields are those of its section `data`."""
  c = importlib.import_module("configs.base").get_config()
  c.sft.steps = 1000
  c.task.difficulties, c.tokenizer = (), tok_dir
  c.rollout.max_prompt, c.rollout.max_tokens = 400, 40
  c.reward.workers = 1
  if train:
    c.data.train = write(directory / "train.jsonl", train)
  if evaluate:
    c.data.evaluate = write(directory / "evaluate.jsonl", evaluate)
  c.data.update(ngram=4, max_corrupt=1.0)
  c.data.update(fields)
  return c


@pytest.fixture
def make(tmp_path, tok_dir):
  """make(train rows, evaluation rows, field=value ...) -> a config."""
  return lambda *rows, **fields: make_config(tmp_path, tok_dir, *rows, **fields)


def check(c):
  if c.data.train or c.data.evaluate:
    c.task.name = "files"
  config_checks.fields(c)


def run(c, workdir, stop=None):
  check(c)
  screen = display.Display(False)
  return prepare.run(c, workdir, screen, stop or threading.Event())


def rows(place, use="train"):
  sources, _ = pipelines.prepared(place, use)
  return [source[i] for source in sources for i in range(len(source))]


def report(place, index=0):
  return json.loads((place / "data.json").read_text())["sources"][index]
