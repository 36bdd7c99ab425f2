"""What prompts begin with: BOS where the tokenizer adds it, exactly once."""

import json
import types

import pytest
import tiny
import tiny_data
import tokenizers
import transformers

from rl_reason.base import config
from rl_reason.base.errors import ConfigError
from rl_reason.base.json_files import write_json
from rl_reason.checks import model_directory
from rl_reason.configs import base
from rl_reason.data import (
    pipelines,
    row_builder,
    sample_files,
    templates,
    tokenizer,
)
from rl_reason.data.datasets import Example
from rl_reason.serve import prompt_tokens, protocol
from rl_reason.stages import demonstrations, prompt_start

BOS, EOS = "<|s|>", "<|e|>"
# What a post-processor writes around a text, and a flag of the config.
LLAMA_3 = [BOS, "$A"], {}
BERT = [BOS, "$A", "<sep>"], {}
T5 = ["$A", EOS], {}
GLM = ["<gmask>", BOS, "$A"], {}
NONE = ["$A"], {}
FLAG = None, dict(add_bos_token=True)  # as of DeepSeek-R1
NO_FLAG = None, dict(add_bos_token=False)
STARTS = [
    (LLAMA_3, [BOS]),
    (BERT, [BOS]),
    (T5, []),
    (GLM, ["<gmask>", BOS]),
    (NONE, []),
    (FLAG, [BOS]),
    (NO_FLAG, []),
]
NAMES = "llama_3 bert t5 glm none flag no_flag".split()
ADDS = [LLAMA_3, BERT, GLM, FLAG]
WRITES_BOS = "{{ bos_token }}{{ messages[-1]['content'] }}"
WRITES_NONE = "> {{ messages[-1]['content'] }}"


def save(path, kind, template=None):
  """The directory of a tokenizer of bytes."""
  parts, fields = kind
  tok = tiny_data.byte_tokenizer()
  tok.chat_template = template
  tok.add_special_tokens(
      dict(additional_special_tokens=["<sep>", "<gmask>", "<|im_end|>"])
  )
  level = tokenizers.processors.ByteLevel(trim_offsets=False)
  tok.backend_tokenizer.post_processor = level
  if parts:
    special = [x for x in parts if x != "$A"]
    ids = tok.convert_tokens_to_ids(special)
    tok.backend_tokenizer.post_processor = (
        tokenizers.processors.TemplateProcessing(
            single=" ".join(parts),
            pair=None,
            special_tokens=list(zip(special, ids, strict=True)),
        )
    )
  tok.save_pretrained(path)
  saved = path / "tokenizer_config.json"
  write_json(saved, json.loads(saved.read_text()) | fields)
  return path


def load(path, kind, template=None):
  return tokenizer.load(str(save(path, kind, template)), "")


def ids_of(tok, text):
  return tokenizer.encode(tok, [text])[0]


def packed(tok, text):
  found = pipelines.pack_prompts(tok, [text], [0], 40)
  return found.tokens_NP[0, found.start_N[0] :].tolist()


@pytest.mark.parametrize(("kind", "start"), STARTS, ids=NAMES)
def test_prompts_begin_with_what_the_tokenizer_adds(kind, start, tmp_path):
  """As the tokenizer encodes a text, without what it appends."""
  tok = load(tmp_path, kind)
  for text in ("1+1?", "", BOS + "1+1?"):
    plain = ids_of(tok, text.removeprefix(BOS))
    want = [*tok.convert_tokens_to_ids(start), *plain]
    if text.startswith(BOS) and BOS not in start:
      want = ids_of(tok, text)
    if want:
      assert packed(tok, text) == want
  whole = tok("1+1?")["input_ids"]
  assert packed(tok, "1+1?") == [
      x for x in whole if tok.convert_ids_to_tokens(x) not in ("<sep>", EOS)
  ]
  tokenizer.begin_with(tok, ())
  assert packed(tok, "1+1?") == ids_of(tok, "1+1?")


@pytest.mark.parametrize("kind", [LLAMA_3, GLM, FLAG])
@pytest.mark.parametrize("template", [WRITES_BOS, WRITES_NONE])
def test_a_chat_has_bos_once(kind, template, tmp_path):
  tok = load(tmp_path, kind, template)
  turns = [dict(role="user", content="1+1?")]
  ids = packed(tok, templates.render(turns, tok, chat=True))
  assert ids.count(tok.bos_token_id) == 1
  start = len(tokenizer.added(tok))
  assert tuple(ids[:start]) == tokenizer.added(tok)
  shown = "1+1?" if template == WRITES_BOS else "> 1+1?"
  assert tok.decode(ids[start:]) == shown


def test_a_file_of_sentencepiece_alone_is_no_tokenizer(tmp_path, monkeypatch):
  (tmp_path / "tokenizer.model").write_bytes(b"\n\x07")
  with pytest.raises(ConfigError, match="tokenizer_config.json does: put"):
    tokenizer.load(str(tmp_path), "")
  write_json(tmp_path / "tokenizer_config.json", {})
  find = tokenizer.importlib.util.find_spec
  monkeypatch.setattr(
      tokenizer.importlib.util,
      "find_spec",
      lambda name, *_: None if name == "sentencepiece" else find(name),
  )
  with pytest.raises(ConfigError, match="cannot be loaded") as e:
    tokenizer.load(str(tmp_path), "")
  if find("tiktoken") is None:
    assert "needs the package sentencepiece" in str(e.value)


def test_the_tokenizer_of_characters_adds_nothing():
  for tok in (tiny.TOK, tokenizer.characters("xyz")):
    assert tokenizer.added(tok) == ()


@pytest.mark.parametrize("kind", [LLAMA_3, BERT, T5, FLAG])
def test_a_row_to_imitate_has_bos_and_eos_once(kind, tmp_path):
  """Nothing stands between a prompt and its response."""
  tok = load(tmp_path, kind)
  tokenizer.end_with(tok, ["<|im_end|>"])
  responses = ["2", f"2{EOS}", "2<|im_end|>"]
  pairs = [("1+1?", x) for x in responses] + [("1+1?", ["2", "so", "3"])]
  tokens_BL, start_B, mask_BT = demonstrations.pack(tok, pairs, 40, 12)
  texts = [
      tok.decode(row[start : 40 + 12])
      for row, start in zip(tokens_BL, start_B, strict=True)
  ]
  before = tok.decode(tokenizer.added(tok))
  pad = tok.pad_token
  assert [x.rstrip() for x in texts] == [
      before + "1+1?" + response + pad * (12 - count)
      for response, count in (
          (f"2{EOS}", 2),
          (f"2{EOS}", 2),
          ("2<|im_end|>", 2),
          (f"2{EOS}so3{EOS}", 6),
      )
  ]
  assert mask_BT.sum(1).tolist() == [2, 2, 2, 4]


def sentencepiece(normalizer, splits):
  """Characters, with SentencePiece's sign for a blank."""
  signs = [*"<>", *"ab12+=?\n", tokenizer.BLANK]
  fast = tokenizers.Tokenizer(
      tokenizers.models.BPE({x: n for n, x in enumerate(signs)}, [])
  )
  if normalizer:
    fast.normalizer = tokenizers.normalizers.Sequence(
        [
            tokenizers.normalizers.Prepend(tokenizer.BLANK),
            tokenizers.normalizers.Replace(" ", tokenizer.BLANK),
        ]
    )
  if splits:
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        prepend_scheme=splits, split=False
    )
  return transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, eos_token=">", pad_token="<"
  )


@pytest.mark.parametrize(
    "options", [(True, ""), (False, "first"), (False, "always")]
)
def test_no_blank_is_written_between_a_prompt_and_its_response(options):
  tok = sentencepiece(*options)
  pairs = [("1+1?\n", "2"), ("1?", "a  b\n2"), ("1", " b"), ("1?", ["2", "1"])]
  tokens_BL, start_B, _ = demonstrations.pack(tok, pairs, 9, 9)
  for row, start, (prompt, response) in zip(
      tokens_BL, start_B, pairs, strict=True
  ):
    whole = prompt + (response if isinstance(response, str) else "2>1")
    ids = row[start:].tolist()
    assert "".join(tok.convert_ids_to_tokens(ids)).rstrip("<").rstrip(">") == (
        tokenizer.BLANK + whole.replace(" ", tokenizer.BLANK)
    )


@pytest.mark.parametrize("kind", ADDS)
def test_lengths_count_what_is_added(kind, tmp_path):
  """Of rows of files, of samples, and of problems of a task."""
  tok = load(tmp_path / "tok", kind)
  c = config.with_defaults(base.get_config())
  question = "x" * 20
  size = len(packed(tok, question))
  assert size == 20 + len(tokenizer.added(tok))
  source = tmp_path / "rows.jsonl"
  source.write_text(json.dumps(dict(prompt=question, response="y")))
  for slots, fits in ((size, True), (size - 1, False)):
    c.rollout.max_prompt = slots
    builder = row_builder.RowBuilder(c.data, c.rollout, tok)
    row = builder.build(Example(question, "1", "math", 0, "x", "x:1"), "train")
    assert isinstance(row, dict) == fits
    if fits:
      assert row["prompt_tokens"] == size and row["prompt"] == question
    args = "sft.samples", str(source), tok, (slots, 9), lambda _: None
    if fits:
      assert sample_files.read(*args)[0] == [[(question, "y")]]
    else:
      with pytest.raises(ValueError, match="longer than rollout.max_prompt"):
        sample_files.read(*args)


@pytest.mark.parametrize("template", [None, WRITES_BOS, WRITES_NONE])
def test_the_server_adds_bos_once(template, tmp_path):
  tok = load(tmp_path, LLAMA_3, template)
  shape = types.SimpleNamespace(tokens=0, vocab=len(tok))
  programs = types.SimpleNamespace(max_prompt=40, cfg=shape)
  prompts = prompt_tokens.Prompts(tok, programs, 9, print)
  plain, bos = ids_of(tok, "1+1?"), tok.bos_token_id

  def complete(text, **fields):
    body = protocol.Completion(prompt=text, **fields)
    return [list(x.ids) for x in prompts.of_completion(body)]

  def chat(**fields):
    turns = [dict(role="user", content="1+1?")]
    (found,) = prompts.of_chat(protocol.Chat(messages=turns, **fields))
    return list(found.ids)

  assert complete(["1+1?", f"{BOS}1+1?"]) == [[bos, *plain]] * 2
  assert complete("1+1?", add_special_tokens=False) == [plain]
  assert complete(plain) == [plain]  # ids are as they are
  written = ids_of(tok, "> 1+1?") if template == WRITES_NONE else plain
  assert chat() == [bos, *written]
  left = [bos] * (template == WRITES_BOS)
  assert chat(add_special_tokens=False) == [*left, *written]


def settled(c, tok, workdir, keep=False):
  said = []
  prompt_start.settle(c, tok, workdir, said.append, keep=keep)
  return said


def config_of(chat=False, **rollout):
  c = config.with_defaults(base.get_config())
  c.tokenizer, c.data.chat = "x", chat
  c.rollout.update(rollout)
  return c


@pytest.mark.parametrize(
    ("kind", "template", "line"),
    [
        (LLAMA_3, None, "prompts begin with '<|s|>', which the tokenizer adds"),
        (FLAG, None, "prompts begin with '<|s|>', which the tokenizer adds"),
        (
            GLM,
            WRITES_NONE,
            "prompts begin with '<gmask>' '<|s|>', which the tokenizer adds",
        ),
        (
            LLAMA_3,
            WRITES_BOS,
            "prompts begin with '<|s|>', which the chat template writes",
        ),
        (
            NONE,
            WRITES_BOS,
            "prompts begin with '<|s|>', which the chat template writes",
        ),
        (
            T5,
            None,
            "prompts begin with their text: the tokenizer adds no token",
        ),
    ],
)
def test_a_run_says_what_prompts_begin_with(kind, template, line, tmp_path):
  tok = load(tmp_path / "tok", kind, template)
  assert settled(config_of(bool(template)), tok, tmp_path) == [line]


def test_a_run_may_leave_bos_out(tmp_path):
  save(tmp_path / "tok", LLAMA_3)
  c = config_of(add_special_tokens=False)
  c.tokenizer = str(tmp_path / "tok")
  tok = model_directory.load_tokenizer(c, None, "")
  assert packed(tok, "1+1?") == ids_of(tok, "1+1?")
  assert settled(c, tok, tmp_path) == [
      "warning: prompts begin without '<|s|>', which the tokenizer adds:"
      " rollout.add_special_tokens = False"
  ]


@pytest.mark.parametrize(
    ("kind", "template"), [(LLAMA_3, None), (FLAG, None), (GLM, WRITES_NONE)]
)
def test_a_run_of_an_earlier_version_goes_on_without_bos(
    kind, template, tmp_path
):
  """It is refused by name, unless the config or the stage says so."""
  tok = load(tmp_path / "tok", kind, template)
  c = config_of(bool(template))
  fields = config.flat(c)
  del fields["rollout.add_special_tokens"]
  write_json(tmp_path / "config.json", fields)
  with pytest.raises(ConfigError) as error:
    settled(c, tok, tmp_path)
  assert "set rollout.add_special_tokens = False to go on" in str(error.value)
  assert str(tmp_path) in str(error.value) and "'<|s|>'" in str(error.value)
  assert not settled(config_of(), load(tmp_path / "t5", T5), tmp_path)[1:]
  (line,) = settled(c, tok, tmp_path, keep=True)
  assert line.endswith("= False, as in the version that began this run")
  assert not c.rollout.add_special_tokens
  assert packed(tok, "1+1?") == ids_of(tok, "1+1?")
  assert settled(c, tok, tmp_path) == [line]


def test_a_template_that_writes_bos_has_always_done_so(tmp_path):
  tok = load(tmp_path / "tok", LLAMA_3, WRITES_BOS)
  write_json(tmp_path / "config.json", {})
  (line,) = settled(config_of(chat=True), tok, tmp_path)
  assert line.endswith("which the chat template writes")
