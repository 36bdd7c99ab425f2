"""Which responses a run logs and shows, and what is said of each."""

import json
import types

import numpy as np
import pytest
import tiny
import tiny_data
import tokenizers
import transformers

from rl_reason import tasks
from rl_reason.algorithms import kl, rewards, surrogates
from rl_reason.base import json_files
from rl_reason.base.structs import Batch, Rollouts, call_by_name
from rl_reason.collect import dynamic_sampling
from rl_reason.collect.experience import graded
from rl_reason.data import sample_files, tokenizer
from rl_reason.monitoring import display, run_log, samples

TEXT = "héllo 日本語 🎉, the\n\n  end"
# By group: none, some and all of the responses are correct.
ACCURACY = {10: [0, 0], 11: [1, 0], 12: [1, 1], 13: [0, 1], 14: [0, 0]}
P, T = 2, 4


def metaspace():
  """A tokenizer as Llama 2 has it: '▁' for spaces, bytes as a fallback."""
  vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
  vocab |= {f"<0x{i:02X}>": 3 + i for i in range(256)}
  vocab |= {x: 300 + i for i, x in enumerate("▁helo,tnd")}
  fast = tokenizers.Tokenizer(
      tokenizers.models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True)
  )
  replace, strip = tokenizers.normalizers.Replace, tokenizers.decoders.Strip
  fast.normalizer = tokenizers.normalizers.Sequence(
      [tokenizers.normalizers.Prepend("▁"), replace(" ", "▁")]
  )
  fast.decoder = tokenizers.decoders.Sequence(
      [
          tokenizers.decoders.Replace("▁", " "),
          tokenizers.decoders.ByteFallback(),
          tokenizers.decoders.Fuse(),
          strip(" ", 1, 0),
      ]
  )
  return transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, bos_token="<s>", eos_token="</s>"
  )


@pytest.mark.parametrize("make", [tiny_data.byte_tokenizer, metaspace])
def test_tokens_are_text_and_split_letters_belong_to_their_last_token(make):
  tok = make()
  (ids,) = tokenizer.encode(tok, [TEXT])
  found = tokenizer.pieces(tok, ids)
  assert "".join(found) == TEXT and len(found) == len(ids)
  assert found[found.index("🎉") - 3 : found.index("🎉")] == ["", "", ""]
  assert {" ", "\n", "é", "語"} <= set(found)
  special = tok.eos_token
  assert tokenizer.pieces(tok, [*ids, tok.eos_token_id])[-1] == special
  # Bytes that are no letter: shown once no letter can follow from them.
  lone, end = tokenizer.encode(tok, ["é", "hh"])
  broken = "".join(tokenizer.pieces(tok, [lone[-2], *end]))
  assert broken.startswith("\ufffd") and broken.endswith("hh")


def rows_of(ids):
  """Graded responses of two tokens, to prompts of these ids."""
  ids_B = np.repeat(np.array(ids, np.int32), 2)
  count = len(ids_B)
  tokens_BL = np.tile(np.array([2, 3, 4, 1, 0, 0], np.int32), (count, 1))
  rollouts = Rollouts(
      tokens_BL=tokens_BL,
      start_B=np.zeros(count, np.int32),
      ids_B=ids_B,
      mask_BT=np.tile(np.arange(T) < 2, (count, 1)),
      logps_BT=np.tile(np.float32([-0.25, -1.23456789, 0, 0]), (count, 1)),
      lengths_B=np.full(count, 2, np.int32),
      truncated_B=np.zeros(count, bool),
  )
  correct = [x for i in ids for x in ACCURACY[i]]
  return graded(rollouts, np.array(correct, np.float32))


def outcome(rows):
  inputs = rows | dict(correct=1.0, incorrect=-1.0, max_tokens=T)
  return call_by_name(rewards.correctness, inputs)


def log_two_rounds(tmp_path, enabled, new_logps=None, **options):
  """The lines of samples.jsonl after a step of two rounds."""
  log = run_log.Log(tmp_path)
  log.show = lambda *x: shown.append(x)  # what loggers get
  shown, tables = [], []
  screen = display.Display(False)
  screen.table = lambda *x: tables.append(x)
  defaults = dict(groups=3, responses=3, every=5, by_reward=False, steps=4)
  defaults |= dict(is_verified=lambda row: True)
  sample_log = samples.SampleLog(
      log,
      screen,
      tiny.TOK,
      lambda i: tasks.Row(f"prompt {i}", str(i)),
      reward=outcome,
      surrogate=surrogates.ppo,
      estimate_kl=lambda *x: np.asarray(kl.estimate("k3", *x)),
      has_values=True,
      new_logps=new_logps,
      **defaults | options,
  )
  rounds = iter([rows_of([10, 11, 12]), rows_of([13, 14])])
  rows, _ = dynamic_sampling.fill_batch(
      sample_log.watch(0, lambda weights: next(rounds), "weights"),
      None,
      batch=4 if enabled else 6,
      group_size=2,
      enabled=enabled,
      max_rounds=2,
      shortfall="pad",
  )
  old_BT = rows.old_logps_BT
  batch = Batch(
      groups_B=rows.rollouts.ids_B,
      mask_BT=rows.rollouts.mask_BT,
      advantages_BT=np.where(rows.correct_B > 0, 1, -1)[:, None]
      * rows.rollouts.mask_BT.astype(np.float32),
      old_logps_BT=old_BT,
      ref_logps_BT=old_BT - 0.5,
      correct_B=rows.correct_B,
      staleness_B=rows.age_B,
      values_BT=old_BT + 2,
      returns_BT=old_BT,
  )
  credit = dict(rewards_B=2 * rows.correct_B - 1)
  sample_log.log(1, rows, credit, batch, "plan", None)
  sample_log.log(2, rows, credit, batch, "plan", None)  # not due
  lines = json_files.read_jsonl(tmp_path / "samples.jsonl")
  return lines, shown, tables


def test_groups_are_whole_and_chosen_before_dynamic_sampling(
    tmp_path, monkeypatch
):
  monkeypatch.setattr(samples, "FEW_TOKENS", 11)  # they have 12
  lines, shown, tables = log_two_rounds(tmp_path, enabled=True)
  found = [(x["group"], x["correct"], x["reward"]) for x in lines]
  assert found == [
      (11, 1, 1),
      (11, 0, -1),
      (10, 0, -1),
      (10, 0, -1),
      (12, 1, 1),
      (12, 1, 1),
  ]
  assert [x["discarded"] for x in lines] == [False] * 2 + [True] * 4
  # One response of each group has the numbers of its tokens.
  assert ["tokens" in x for x in lines] == [False, True] + [True, False] * 2
  detailed = lines[1]
  assert detailed["logp"] == [-0.25, -1.2346] and detailed["length"] == 2
  assert detailed["advantage"] == [-1, -1] and detailed["value"][0] == 1.75
  assert detailed["kl"][0] == pytest.approx(np.exp(-0.5) - 0.5, rel=1e-4)
  assert "advantage" not in lines[2] and "ratio" not in detailed
  assert [x.get("advantage_mean") for x in lines] == [1, -1] + [None] * 4
  ((stage, step, texts, histograms),) = shown
  assert (stage, step) == ("rl", 1) and "prompt 11" in texts["responses"]
  assert sorted(histograms["reward"]) == [-1] * 3 + [1] * 3
  assert [row[0] for row in tables[0][2]] == [
      f"prompt {i}" for i in (11, 10, 12)
  ]


def test_without_dynamic_sampling_extreme_groups_have_advantages(tmp_path):
  lines, _, _ = log_two_rounds(tmp_path, enabled=False)
  assert [x["group"] for x in lines[::2]] == [11, 10, 12]
  assert not any(x["discarded"] for x in lines)
  assert all(len(x["advantage"]) == 2 for x in lines)


def test_without_a_verifier_signal_is_that_of_the_rewards(tmp_path):
  """Groups of equal rewards are extreme, and nothing is said of verdicts."""
  lines, shown, tables = log_two_rounds(
      tmp_path, enabled=False, by_reward=True, is_verified=lambda row: False
  )
  # Two groups of the batch with signal, if there are, then one of equal ones.
  assert [x["group"] for x in lines[::2]] == [11, 10]
  assert {x["correct"] for x in lines} == {None}
  assert [row[2] for row in tables[0][2]] == ["not verified"] * 2
  assert "correct: not verified" in shown[0][2]["responses"]


def test_ratios_are_those_after_the_update(tmp_path):
  lines, _, _ = log_two_rounds(
      tmp_path,
      enabled=True,
      new_logps=lambda plan: np.float32([[0.25, -1.2, 0, 0]] * 4),
  )
  first, second = lines[:2]
  assert first["ratio"] == second["ratio"]
  assert first["ratio"][0] == pytest.approx(np.exp(0.5), rel=1e-4)
  # The upper bound clips the positive advantage only.
  assert first["clipped"] == [1, 0] and second["clipped"] == [0, 0]


def test_a_response_cannot_command_the_terminal(capsys):
  """Neither the title and the cursor, nor the direction; text stays text."""
  hostile = "\x1b]0;title\x07\x1b[2Jé\r\u202eabc\ud800\x9b"
  screen = display.Display()
  screen.say(hostile)
  screen.table("t", ["response"], [[hostile]])
  screen.stage(hostile, 2)
  screen.say(screen.where())
  screen.close()
  out = capsys.readouterr().out
  assert all(x.isprintable() for x in out.replace("\n", ""))
  assert out.count(r"\x1b]0;title\x07\x1b[2Jé\r\u202eabc\ud800\x9b") == 3


def test_tables_on_the_screen_are_bounded(capsys):
  screen = display.Display()
  long = "\n".join(f"line {i} " + "x" * 50 for i in range(4000))
  screen.table("t", ["prompt", "response"], [[long, long]] * 3)
  screen.close()
  out = capsys.readouterr().out
  assert len(out.splitlines()) < 70
  assert "line 0" in out and out.count("[...") == 6
  assert display.excerpt("short\n" * 4) == "short\n" * 4
  assert json.dumps(display.excerpt("a" * 1000)).count("a") > 300


def test_a_stored_group_shows_its_own_prompt():
  """Its id is of no row of the data; the log and a replay read the tokens."""
  first = sample_files.FIRST_ID
  tokens = tokenizer.encode(tiny.TOK, ["12+3=", "12"])
  tokens_BL = np.zeros((3, 6 + T), np.int32)
  for b, of_prompt in enumerate(tokens, 1):
    tokens_BL[b, 6 - len(of_prompt) : 6] = of_prompt
  rollouts = types.SimpleNamespace(
      ids_B=np.array([7, first, first + 1]),
      tokens_BL=tokens_BL,
      start_B=np.array([0, *(6 - len(x) for x in tokens)]),
      mask_BT=np.ones((3, T), bool),
  )
  row_of = lambda prompt_id: tasks.Row(f"row {prompt_id}", "3")  # noqa: E731
  found = [
      samples.row_of_response(row_of, tiny.TOK, rollouts, b) for b in range(3)
  ]
  assert [(x.prompt, x.answer) for x in found] == [
      *(("row 7", "3"), ("12+3=", ""), ("12", "")),
  ]
