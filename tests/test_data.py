"""Tokenizers and batches of tokens: round trips and padding."""

import json
import time

import numpy as np
import pytest
import tokenizers
import transformers

from rl_reason.base import hub_connection
from rl_reason.base.errors import ConfigError
from rl_reason.data import pipelines, tokenizer
from rl_reason.data.datasets import DataError
from rl_reason.stages import demonstrations
from rl_reason.tasks import arithmetic, countdown


@pytest.fixture(scope="module")
def tok():
  return tokenizer.characters(arithmetic.ALPHABET)


# --- tokenizer ---------------------------------------------------------------


@pytest.mark.parametrize("task", [arithmetic, countdown])
def test_one_token_a_character(task):
  tok = tokenizer.load("", task.ALPHABET)
  assert len(tok) == len(task.ALPHABET) + 2
  assert (tok.pad_token_id, tok.eos_token_id) == (0, 1)
  texts = [task.ALPHABET, task.ALPHABET[::-1], "12=", "", "==;;##"]
  ids = tokenizer.encode(tok, texts)
  assert [len(row) for row in ids] == [len(text) for text in texts]
  assert min(map(min, filter(None, ids))) >= 2, "neither padding nor EOS"
  for text, row in zip(texts, ids, strict=True):
    assert tok.decode(row) == text


def test_decode_stops_at_the_length_and_drops_eos(tok):
  """Slots behind the length may hold anything."""
  five, mark = tokenizer.encode(tok, ["5#"])[0]
  eos = tok.eos_token_id
  tokens_BT = np.array([[five, mark, five, eos], [five, eos, mark, mark]])
  assert tokenizer.decode(tok, tokens_BT, [4, 2]) == ["5#5", "5"]
  assert tokenizer.decode(tok, tokens_BT, np.array([2, 0])) == ["5#", ""]


def save(path, symbols, **special):
  """A tiny word-level tokenizer in a directory, as a user would bring it."""
  fast = tokenizers.Tokenizer(
      tokenizers.models.WordLevel(
          {s: i for i, s in enumerate(symbols)}, unk_token=symbols[0]
      )
  )
  fast.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
  fast.decoder = tokenizers.decoders.Fuse()
  transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, **special
  ).save_pretrained(path)
  return str(path)


def test_load_directory(tmp_path):
  """Without a pad token, EOS fills up: masks, not ids, say what counts."""
  path = save(tmp_path, ["?", "</s>", *"0123456789+-=;#"], eos_token="</s>")
  tok = tokenizer.load(path, arithmetic.ALPHABET)
  assert tok.eos_token_id == tok.pad_token_id == 1
  assert tok.decode(tokenizer.encode(tok, ["5-1=4;#4"])[0]) == "5-1=4;#4"


def test_load_says_which_characters_are_missing(tmp_path):
  path = save(tmp_path, ["?", "</s>", *"0123456789+-="], eos_token="</s>")
  with pytest.raises(ConfigError) as error:
    tokenizer.load(path, arithmetic.ALPHABET)
  message = str(error.value)
  assert path in message
  assert "'0123456789+-=;#' as '0123456789+-=??'" in message


def test_what_ends_a_response():
  tok = tokenizer.characters(arithmetic.ALPHABET)
  eos, minus = tok.eos_token_id, tok.convert_tokens_to_ids("-")
  assert tokenizer.response_ends(tok).ids == (eos,)
  with pytest.raises(ConfigError, match="stop_tokens: '--' is no token"):
    tokenizer.end_with(tok, ("-", "--"))
  tokenizer.end_with(tok, ("-",))
  assert tokenizer.response_ends(tok).ids == (eos, minus)


@pytest.mark.parametrize(
    ("stop_tokens", "response", "text"),
    [
        (("<|im_end|>",), "2<|im_end|>", "2"),
        (("<|im_end|>",), "2<|im_end|><|im_end|>", "2<|im_end|>"),  # once
        (("<|im_end|>",), "2<eos>", "2"),
        (("<|im_end|>",), "2<|eot|>", "2<|eot|>"),  # ended nothing
        (("<|im_end|>", "<|eot|>"), "<|im_end|>2<|eot|>", "<|im_end|>2"),
        ((), "2<|im_end|>", "2<|im_end|>"),
        (("2",), "12", "1"),  # no special token
        (("<|im_end|>",), "", ""),
    ],
)
def test_the_text_of_a_response_is_without_what_ended_it(
    stop_tokens, response, text
):
  tok = tokenizer.characters("12")
  tok.add_special_tokens(
      dict(additional_special_tokens=["<|im_end|>", "<|eot|>"])
  )
  tokenizer.end_with(tok, stop_tokens)
  ids = tokenizer.encode(tok, [response])[0]
  rows = np.array([ids + [0] * (9 - len(ids))])
  assert tokenizer.decode(tok, rows, [len(ids)]) == [text]
  if text:
    (place,) = tokenizer.last_tokens(tok, ids, text, [len(text)])
    assert tok.decode(ids[: place + 1]) == text


@pytest.mark.parametrize(
    ("strings", "response", "cut", "kept"),
    [
        (("12",), "0123", "0", "012"),  # a token may go on after the string
        (("12", "01"), "0123", "", "01"),  # the one that is complete first
        (("012", "12"), "0123", "", "012"),
        (("12",), "0<eos>", "0", "0"),
        (("12",), "12", "", "12"),
        (("3", "45"), "0<|im_end|>3", "0<|im_end|>", "0<|im_end|>3"),
    ],
)
def test_the_text_of_a_response_ends_at_a_stop_string(
    strings, response, cut, kept
):
  tok = tokenizer.characters("0123")
  tok.add_special_tokens(dict(additional_special_tokens=["<|im_end|>"]))
  ids = tokenizer.encode(tok, [response])[0]
  for keep, text in ((False, cut), (True, kept)):
    tokenizer.end_with(tok, (), strings, keep=keep)
    assert tokenizer.decode(tok, np.array([ids]), [len(ids)]) == [text]
    if text:
      (place,) = tokenizer.last_tokens(tok, ids, text, [len(text)])
      assert tok.decode(ids[: place + 1]) == text


def test_load_wants_an_eos(tmp_path):
  path = save(tmp_path, ["?", *"0123456789+-=;#"])
  with pytest.raises(ConfigError, match="has no EOS token; set eos_token"):
    tokenizer.load(path, arithmetic.ALPHABET)


def test_load_wants_more_than_special_tokens(tmp_path):
  """Without tokenizer.json the class of Llama has these three tokens."""
  config = dict(tokenizer_class="LlamaTokenizer", eos_token="</s>")
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  with pytest.raises(ConfigError, match="has 3 tokens and spells no text"):
    tokenizer.load(str(tmp_path), "")


def test_the_code_of_a_directory_is_not_run(tmp_path, monkeypatch):
  """Also if somebody, or a script, answers the question of transformers."""
  ran = tmp_path / "ran"
  (tmp_path / "own.py").write_text(
      f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n"
      "from transformers import PreTrainedTokenizerFast as Own\n"
  )
  config = dict(auto_map=dict(AutoTokenizer=["own.Own", "own.Own"]))
  config |= dict(tokenizer_class="Own", eos_token="</s>")
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr("builtins.input", lambda *_: "y")
  with pytest.raises(ConfigError, match="cannot be loaded"):
    tokenizer.load(str(tmp_path), "")
  assert not ran.exists()


@pytest.mark.parametrize("place", ["http://127.0.0.1:9", "https://[::1]:9"])
def test_a_hub_that_is_away_is_said_at_once(place, tmp_path, monkeypatch):
  monkeypatch.setenv("HF_ENDPOINT", place)
  for name in "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy":
    monkeypatch.delenv(name, raising=False)
  hub_connection.unreachable.cache_clear()
  start = time.monotonic()
  with pytest.raises(ConfigError, match="not in the cache, and .* be reached"):
    tokenizer.load("nobody/nothing", "")
  assert time.monotonic() - start < 5
  monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
  hub_connection.unreachable.cache_clear()
  assert not hub_connection.unreachable(), "the client asks the proxy"
  hub_connection.unreachable.cache_clear()


def test_load_from_nowhere(tmp_path):
  """One line that says what to give instead, for a path and an empty one."""
  for path in (tmp_path, tmp_path / "nothing"):
    with pytest.raises(ConfigError) as error:
      tokenizer.load(str(path), arithmetic.ALPHABET)
    assert f"tokenizer = {str(path)!r}: " in str(error.value)
    assert "directory" in str(error.value)
    assert "\n" not in str(error.value)


# --- packing -----------------------------------------------------------------


def test_pack_prompts_pads_on_the_left(tok):
  packed = pipelines.pack_prompts(
      tok, ["1+2=", "3=", "3"], [7, 8, 2**31 - 2], 5
  )
  pad, (one, plus, two, is_, three) = (
      tok.pad_token_id,
      tokenizer.encode(tok, ["1+2=3"])[0],
  )
  assert packed.tokens_NP.tolist() == [
      [pad, one, plus, two, is_],
      [pad, pad, pad, three, is_],
      [pad, pad, pad, pad, three],
  ]
  assert packed.start_N.tolist() == [1, 3, 4]
  assert packed.ids_N.tolist() == [7, 8, 2**31 - 2]
  for x in (packed.tokens_NP, packed.start_N, packed.ids_N):
    assert x.dtype == np.int32


def test_pack_prompts_that_just_fit_or_do_not(tok):
  assert pipelines.pack_prompts(tok, ["1+2="], [0], 4).start_N.tolist() == [0]
  with pytest.raises(ValueError) as error:
    pipelines.pack_prompts(tok, ["3=", "1+2+3="], [0, 1], 5)
  assert str(error.value) == (
      "prompt '1+2+3=' has 6 tokens, rollout.max_prompt = 5: raise it"
  )


def test_a_prompt_without_a_token_is_refused(tok):
  with pytest.raises(DataError, match="prompt '' has no token"):
    pipelines.pack_prompts(tok, ["3=", ""], [0, 1], 5)


def test_pack_demonstrations(tok):
  """Four response slots: '#3' has room for its EOS, '1;#3' has not."""
  pairs = [("1+2=", "#3"), ("3=", "1;#3"), ("3=", "1;1;#3"), ("3=", "")]
  tokens_BL, start_B, mask_BT = demonstrations.pack(tok, pairs, 5, 4)
  assert tokens_BL.shape == (4, 9) and tokens_BL.dtype == np.int32
  assert start_B.tolist() == [1, 3, 3, 3]
  assert mask_BT.dtype == bool
  assert mask_BT.tolist() == [
      [True, True, True, False],
      [True, True, True, True],
      [True, True, True, True],
      [True, False, False, False],
  ]
  eos, pad = tok.eos_token_id, tok.pad_token_id
  mark, three, one, then = tokenizer.encode(tok, ["#31;"])[0]
  assert tokens_BL[:, 5:].tolist() == [
      [mark, three, eos, pad],
      [one, then, mark, three],
      [one, then, one, then],
      [eos, pad, pad, pad],
  ]
  prompts = pipelines.pack_prompts(tok, [p for p, _ in pairs], range(4), 5)
  np.testing.assert_array_equal(tokens_BL[:, :5], prompts.tokens_NP)
