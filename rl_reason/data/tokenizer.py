"""Tokenizers, all with the interface of transformers.

Tasks that generate their problems have a character tokenizer by default;
another tokenizer is a directory or hub id in `config.tokenizer`.
"""

import bisect
import copy
import functools
import importlib.util
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

# Only tokenizers are used; otherwise transformers warns about torch.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

import tokenizers
import transformers

from rl_reason.base import file_pointers, hub_connection
from rl_reason.base.errors import ConfigError, one_line

PAD, EOS = "<pad>", "<eos>"
BLANK = "\u2581"  # of SentencePiece


def characters(alphabet: str) -> transformers.PreTrainedTokenizerFast:
  """A fast tokenizer with one token per character of the alphabet."""
  symbols = [PAD, EOS, *alphabet]
  fast = tokenizers.Tokenizer(
      tokenizers.models.WordLevel({s: i for i, s in enumerate(symbols)})
  )
  fast.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
  fast.decoder = tokenizers.decoders.Fuse()
  return transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, pad_token=PAD, eos_token=EOS
  )


def load(
    path: str,
    alphabet: str,
    revision: str | None = None,
    template_args: Mapping[str, Any] | None = None,
) -> transformers.PreTrainedTokenizerBase:
  """The tokenizer of a run.

  Args:
    path: a local directory or hub id; '' for a character tokenizer.
    alphabet: all characters of the task.
    revision: commit, tag or branch of a hub id; None for the newest.
    template_args: keywords that each call of `apply_chat_template` passes to
      the chat template, unless the call has them itself.

  Raises:
    ConfigError: the tokenizer cannot be loaded, has no EOS, has only special
      tokens, or lacks characters.
  """
  if not path:
    return characters(alphabet)
  if (os.sep in path or path[0] == ".") and not os.path.isdir(path):
    # A text with exactly one slash may also be a hub id.
    if path.count("/") != 1 or path[0] in "./~":
      raise ConfigError(f"tokenizer = {path!r}: there is no such directory")
  names = [x.name for x in pathlib.Path(path).glob("token*")]
  if names == ["tokenizer.model"]:
    raise ConfigError(
        f"tokenizer = {path!r}: tokenizer.model does not say how a text begins,"
        " and tokenizer_config.json does: put the model's own beside it"
    )
  away = "" if os.path.isdir(path) else hub_connection.unreachable()
  try:
    # Otherwise transformers asks on stdin whether to run the directory's code.
    tok = transformers.AutoTokenizer.from_pretrained(
        path,
        trust_remote_code=False,
        revision=revision or "main",
        local_files_only=bool(away),
    )
  except Exception as e:  # of any reader of a damaged file
    files = pathlib.Path(path).glob("token*")
    for file in sorted(x for x in files if x.is_file()):
      if why := file_pointers.problem(file):
        raise ConfigError(f"tokenizer = {path!r}: {file.name} {why}") from None
    why = f"it is not in the cache, and {away}" if away else one_line(e)
    # Then transformers takes a file of SentencePiece for one of tiktoken.
    if "tiktoken" in why and not importlib.util.find_spec("sentencepiece"):
      why = "tokenizer.model needs the package sentencepiece, which is missing"
    raise ConfigError(
        f"tokenizer = {path!r}: cannot be loaded ({why}); give a directory with"
        " tokenizer.json, or '' for the built-in one"
    ) from None
  if tok.eos_token_id is None:
    raise ConfigError(f"tokenizer = {path!r}: has no EOS token; set eos_token")
  if tok.pad_token_id is None:
    tok.pad_token = tok.eos_token
  # Where tokenizer.json is missing, some classes come with special tokens only.
  if set(tok.get_vocab().values()) <= set(tok.all_special_ids):
    raise ConfigError(
        f"tokenizer = {path!r}: has {len(tok)} tokens and spells no text with"
        " them; give a directory with tokenizer.json"
    )
  require_spelled(tok, path, alphabet)
  if _adds_bos(path, revision) and tok.bos_token and not added(tok):
    setattr(tok, "add_bos_token", True)  # noqa: B010  a property in 5 alone
  if template_args:
    apply = functools.partial(tok.apply_chat_template, **template_args)
    setattr(tok, apply.func.__name__, apply)
  return tok


def require_spelled(tok: Any, path: str, alphabet: str) -> None:
  """Refuses a tokenizer that lacks characters of a task.

  Raises:
    ConfigError: names them, and the tokenizer's `path`.
  """
  spelled = tok.decode(tok.encode(alphabet, add_special_tokens=False))
  if spelled != alphabet:
    raise ConfigError(
        f"tokenizer = {path!r}: spells the task's {alphabet!r} as {spelled!r};"
        " choose a tokenizer that has these characters"
    )


def _adds_bos(path: str, revision: str | None) -> bool:
  """Whether tokenizer_config.json asks for BOS.

  transformers 5 reads the flag only where there is no tokenizer.json.
  """
  read = transformers.models.auto.tokenization_auto.get_tokenizer_config
  return read(path, revision=revision or "main").get("add_bos_token") is True


def difference(tok, other) -> str:
  """The first token whose id differs in another tokenizer; '' if none does."""
  ours, theirs = tok.get_vocab(), other.get_vocab()
  for token, _ in sorted(ours.items() ^ theirs.items()):
    return (
        f"{token!r} has id {theirs.get(token)}, and {ours.get(token)} in the"
        " policy's"
    )
  return ""


class Ends(NamedTuple):
  """What ends a response.

  Attributes:
    ids: EOS and the stop tokens.
    strings: texts, however they are split into tokens.
    keeps_string: whether the text of a response keeps the string that ended it.
  """

  ids: tuple[int, ...]
  strings: tuple[str, ...] = ()
  keeps_string: bool = False

  def before(self, ids: Sequence[int]) -> Sequence[int]:
    """The tokens of a response without the token that ended it."""
    return ids[:-1] if len(ids) and ids[-1] in self.ids else ids

  def text(self, text: str) -> str:
    """The text up to the string that is complete first."""
    ends = ((text.find(x) + len(x), x) for x in self.strings if x in text)
    if (first := min(ends, default=None)) is None:
      return text
    end, string = first
    return text[: end if self.keeps_string else end - len(string)]


def end_with(
    tok,
    stop_tokens: Sequence[str] = (),
    stop_strings: Sequence[str] = (),
    *,
    keep: bool = False,
) -> None:
  """Lets responses of a tokenizer end with more than EOS.

  All code that samples or reads responses has the tokenizer, and calls
  `response_ends`.

  Args:
    tok: the tokenizer.
    stop_tokens: texts of the tokens.
    stop_strings: texts that several tokens may spell.
    keep: whether the text of a response keeps the string that ended it (vLLM's
      `include_stop_str_in_output`).

  Raises:
    ConfigError: a text is not one token.
  """
  ids = tok.convert_tokens_to_ids(list(stop_tokens))
  for text, i in zip(stop_tokens, ids, strict=True):
    if i is None or tok.convert_ids_to_tokens(i) != text:
      raise ConfigError(
          f"rollout.stop_tokens: {text!r} is no token of the tokenizer; leave"
          " it out, or add it to the tokenizer and to the model"
      )
  tok.response_ends = Ends((tok.eos_token_id, *ids), tuple(stop_strings), keep)


def response_ends(tok) -> Ends:
  """What ends a response: EOS, and what `end_with` has added."""
  return getattr(tok, "response_ends", None) or Ends((tok.eos_token_id,))


def added(tok) -> tuple[int, ...]:
  """The tokens that the post-processor adds before a text, such as BOS."""
  if not tok.num_special_tokens_to_add():
    return ()
  special = {*tok.all_special_ids}
  ids = (i for i in range(len(tok)) if i not in special)
  for text in itertools.chain("a1", (tok.decode([i]) for i in ids)):
    try:
      plain = tok(text, add_special_tokens=False)["input_ids"]
      whole = tok(text)["input_ids"]
    except Exception:  # the tokenizer lacks this character
      continue
    for first in range(len(whole) if plain else 0):
      if whole[first : first + len(plain)] == plain:
        return tuple(whole[:first])
  return ()


def begin_with(tok, start: Sequence[int]) -> None:
  """Lets prompts of a tokenizer begin with other tokens than `added`."""
  tok.prompt_start = tuple(start)


def prompt_start(tok) -> tuple[int, ...]:
  """The tokens with which each prompt begins."""
  if getattr(tok, "prompt_start", None) is None:
    begin_with(tok, added(tok))
  return tok.prompt_start


def begun(tok, ids: list[int]) -> list[int]:
  """The tokens of a text with `prompt_start`, exactly once.

  The text may begin with all or with the last ones of these tokens, as the text
  of a chat template that writes BOS.
  """
  return with_start(ids, prompt_start(tok))


def with_start(ids: list[int], start: tuple[int, ...]) -> list[int]:
  """Tokens with others before them, as far as they do not begin with these."""
  for n in range(len(start) + 1):
    if tuple(ids[: len(start) - n]) == start[n:]:
      return [*start[:n], *ids]
  raise AssertionError  # the empty tuple is equal


def encode_prompts(tok, texts: list[str]) -> list[list[int]]:
  """Token ids of each prompt: `encode` with what a prompt begins with.

  Raises:
    ConfigError: the tokenizer cannot encode a text.
  """
  return [begun(tok, ids) for ids in encode(tok, texts)]


def encode_after(tok, texts: list[str]) -> list[list[int]]:
  """Token ids of texts that follow another one, such as responses.

  Tokenizers of SentencePiece write a blank before the first word of a text.

  Raises:
    ConfigError: the tokenizer cannot encode a text.
  """
  alone = encode(tok, texts)
  pairs = zip(texts, alone, strict=True)
  first = {ids[0] for x, ids in pairs if ids and not x.startswith(" ")}
  if not any(x.startswith(BLANK) for x in tok.convert_ids_to_tokens([*first])):
    return alone
  [line] = encode(tok, ["\n"])
  whole = encode(tok, ["\n" + x for x in texts])
  return [
      ids[len(line) :] if ids[: len(line)] == line else other
      for ids, other in zip(whole, alone, strict=True)
  ]


def encode(tok, texts: list[str]) -> list[list[int]]:
  """Token ids of each text, without special tokens added.

  Raises:
    ConfigError: the tokenizer cannot encode a text.
  """
  try:
    return tok(texts, add_special_tokens=False)["input_ids"]
  except Exception:  # for example an unknown character, or a surrogate
    for text in texts:
      spell(lambda x: tok(x, add_special_tokens=False), text)
    raise


def plain(tok, markup: Iterable[str]) -> Callable[[str], list[int]]:
  """Returns an encoder of text in which markup becomes ordinary tokens.

  `markup` are texts of added tokens. The encoder raises ConfigError as `encode`
  does.
  """
  backend = getattr(tok, "backend_tokenizer", None)
  if backend is None:  # a tokenizer that is written in Python

    def encoded(text):
      options = dict(add_special_tokens=False, split_special_tokens=True)
      return tok(text, **options)["input_ids"]

  else:
    backend = copy.deepcopy(backend)
    backend.add_special_tokens(list(markup))
    backend.encode_special_tokens = True

    def encoded(text):
      return backend.encode(text, add_special_tokens=False).ids

  return lambda text: spell(encoded, text)


def spell(encoded: Callable[[str], Any], text: str) -> Any:
  """Returns `encoded(text)`, where `encoded` encodes with a tokenizer.

  Raises:
    ConfigError: the text cannot be encoded; the error names the first character
      that the tokenizer lacks.
  """

  def lacks(text: str) -> bool:
    try:
      encoded(text)
    except Exception:  # tokenizers raise plain exceptions
      return True
    return False

  try:
    return encoded(text)
  except Exception as e:
    found = next(filter(lacks, text), "")
    raise ConfigError(
        f"tokenizer: cannot encode {found!r} in {text[:80]!r}: leave it out, or"
        " choose a tokenizer that has a token for it"
        if found
        else f"tokenizer: cannot encode {text[:80]!r}: {one_line(e)}"
    ) from None


def decode(tok, tokens_BT, lengths_B) -> list[str]:
  """The text of each response without the token or the string that ended it.

  Other special tokens stay in the text, so that verifiers and readers see them.
  """
  ends = response_ends(tok)
  texts = tok.batch_decode(
      [
          ends.before(row[:n])
          for row, n in zip(tokens_BT.tolist(), lengths_B, strict=True)
      ]
  )
  return [*map(ends.text, texts)]


class Detokenizer:
  """Decodes one token at a time; the pieces together are the whole text.

  With a byte-level vocabulary, a character may consist of several tokens. The
  last of these tokens adds the character, and the others add no text.
  """

  def __init__(self, tok):
    self._backend = getattr(tok, "backend_tokenizer", tok)  # no cleaning up
    # The ids of the last piece, and of tokens without text so far, which are
    # decoded together: some tokenizers drop the space at the start of a text.
    self._ids: list[int] = []
    self._done = 0  # number of ids of the last piece

  def add(self, token: int, last: bool = False) -> str:
    """The text that a token adds; `last` also returns incomplete characters."""
    self._ids.append(token)
    decoded = self.text(self._ids)
    # A replacement character stands for an incomplete character, of at most 4
    # bytes.
    open_bytes = decoded.endswith("\ufffd") and len(self._ids) - self._done < 4
    return "" if open_bytes and not last else self._take(decoded)

  def rest(self) -> str:
    """The remaining text, with incomplete characters."""
    return self._take(self.text(self._ids))

  def _take(self, decoded: str) -> str:
    out = decoded[len(self.text(self._ids[: self._done])) :]
    self._ids = self._ids[self._done :]
    self._done = len(self._ids)
    return out

  def text(self, ids: Sequence[int]) -> str:
    """The text of ids, with special tokens."""
    return self._backend.decode(ids, skip_special_tokens=False)


def last_tokens(
    tok, ids: Sequence[int], text: str, ends: Sequence[int]
) -> list[int]:
  """The place of the token that completes each of some parts of a text.

  Args:
    tok: the tokenizer.
    ids: tokens of a response, perhaps with the token that ended it.
    text: its text, of `decode`.
    ends: increasing numbers of characters, from 1 to the length of the text.

  Returns:
    For each end the first n for which tokens 0 to n spell text[:end].
  """
  ids = [*response_ends(tok).before(ids)]
  found = pieces(tok, ids)
  if "".join(found).startswith(text):
    lengths = list(itertools.accumulate(map(len, found)))
    return [bisect.bisect_left(lengths, end) for end in ends]

  # The tokenizer cleans up spaces, or bytes are no characters: decode prefixes.
  def spells(end: int, n: int) -> bool:
    return tok.decode(ids[: n + 1]).startswith(text[:end])

  places = range(len(ids) - 1)
  return [
      bisect.bisect_left(places, True, key=functools.partial(spells, end))
      for end in ends
  ]


def pieces(tok, ids: Sequence[int]) -> list[str]:
  """The text that each token of a response adds; see `Detokenizer`."""
  detokenizer = Detokenizer(tok)
  return [detokenizer.add(x, n == len(ids)) for n, x in enumerate(ids, 1)]
