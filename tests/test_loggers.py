"""Loggers get every metric, and none of them can stop or delay a run."""

import errno
import json
import os
import struct
import threading
import time

import numpy as np
import pytest
from tensorboardX import record_writer

from rl_reason.base import config, errors, json_files
from rl_reason.checks import config_files
from rl_reason.monitoring import loggers, run_log

FIELDS = {"rl.steps": 2, "optimizer.lr": 1e-3, "task.difficulties": [2, 3]}
HISTOGRAMS = {"reward": np.array([-1.0, 1.0, np.nan]), "none": np.zeros(0)}


def log_with(tmp_path, text="", more=()):
  """A Log with loggers, and the lines that they say."""
  said = []
  writers = loggers.writers(text, more, tmp_path, FIELDS, said.append)
  return run_log.Log(tmp_path, writers), said


def fill(log, steps=2):
  """What a run logs."""
  for step in range(1, steps + 1):
    log.metrics("rl", step, {"train/accuracy": step / 4, "bad": float("nan")})
  log.show("rl", 2, {"responses": "# Hello"}, HISTOGRAMS)
  log.close()


def steps_of(tmp_path):
  return [x["step"] for x in json_files.read_jsonl(tmp_path / "metrics.jsonl")]


def events(folder):
  """The summaries of an event file, as (step, value)."""
  from tensorboardX.proto import event_pb2

  (path,) = folder.iterdir()
  data, at, out = path.read_bytes(), 0, []
  while at < len(data):
    (size,) = struct.unpack_from("<Q", data, at)
    event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
    out += [(event.step, value) for value in event.summary.value]
    at += size + 16
  return out


def scalars_of(folder):
  """(tag, step) of the scalars of all event files, by a reader of records."""
  from tensorboardX.proto import event_pb2

  out = []
  for path in sorted(folder.iterdir()):
    data, at = path.read_bytes(), 0
    while at < len(data):
      (size,) = struct.unpack_from("<Q", data, at)
      body = data[at + 12 : at + 12 + size]
      checks = struct.unpack_from("<I", data, at + 12 + size)
      assert checks == (record_writer.masked_crc32c(body),)
      event = event_pb2.Event.FromString(body)
      out += [
          (value.tag, event.step)
          for value in event.summary.value
          if value.HasField("simple_value")
      ]
      at += size + 16
  return out


def test_tensorboard_has_each_step_once_after_a_resume(tmp_path):
  """Also where the kill has cut an event, and other stages have more steps."""
  log, _ = log_with(tmp_path, "tensorboard")
  for step in (10, 20):
    log.metrics("sft", step, {"loss": step})
  log.metrics("rl", 1, {"x": 1})
  noted = log.note()  # the checkpoint of step 1
  for step in (2, 3):
    log.metrics("rl", step, {"x": step})
    log.metrics("evaluate", step, {"score": step})
  log.show("rl", 3, {"responses": "# Hello"}, HISTOGRAMS)
  log.close()
  (path,) = (tmp_path / "tensorboard").iterdir()
  path.write_bytes(path.read_bytes()[:-3])
  for _ in range(2):
    log, said = log_with(tmp_path, "tensorboard")
    log.remember(noted)
    log.truncate()
    for step in (2, 3):
      log.metrics("rl", step, {"x": -step})
    log.close()
    assert not said
  found = scalars_of(tmp_path / "tensorboard")
  assert sorted(x for x in found if x[0][0] != "_") == [
      *(("rl/x", step) for step in (1, 2, 3)),
      *(("sft/loss", step) for step in (10, 20)),
  ]


def test_tensorboard_holds_scalars_texts_histograms_and_the_config(tmp_path):
  log, said = log_with(tmp_path, "tensorboard")
  fill(log)
  found = events(tmp_path / "tensorboard")
  scalars = [(s, v.tag, v.simple_value) for s, v in found if v.simple_value]
  assert scalars == [
      (1, "rl/train/accuracy", 0.25),
      (2, "rl/train/accuracy", 0.5),
  ]
  (histogram,) = [v.histo for _, v in found if v.HasField("histo")]
  assert (histogram.num, histogram.min, histogram.max) == (2, -1, 1)
  assert [v for _, v in found if b"# Hello" in v.tensor.SerializeToString()]
  config_of = b"".join(v.metadata.plugin_data.content for _, v in found)
  assert b"optimizer.lr" in config_of and b"val-aux/score" in config_of
  assert not said


def test_functions_and_objects_of_the_user(tmp_path, monkeypatch):
  (tmp_path / "my_log.py").write_text(
      "seen = []\n"
      "def function(metrics, step):\n"
      "  seen.append((step, metrics))\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  seen = []

  class Mine:

    def write(self, step, metrics):
      seen.append((step, metrics))

    def close(self):
      seen.append("closed")

  loggers.check("my_log:function, tensorboard")
  log, said = log_with(tmp_path, "my_log:function", (Mine,))
  fill(log)
  import my_log

  assert my_log.seen == seen[:2] and seen[2:] == ["closed"] and not said
  assert seen[1] == (2, {"rl/train/accuracy": 0.5})


@pytest.mark.parametrize(
    "name, words",
    [
        ("tensorbord", "did you mean tensorboard?"),
        ("json:__name__", "'json' is no logger: it needs write(step, metrics)"),
        ("no_such_module:f", "there is no module no_such_module"),
    ],
)
def test_what_is_no_logger_is_refused(name, words):
  with pytest.raises(ValueError) as e:
    loggers.check(f"tensorboard,{name}")
  assert words in str(e.value)


def test_a_logger_that_is_not_installed_is_refused(monkeypatch):
  monkeypatch.setitem(loggers.NAMED, "wandb", (loggers.WandB, "no_wandb_here"))
  with pytest.raises(ValueError, match=r"pip install 'rl_reason\[loggers\]'"):
    loggers.check("wandb")


@pytest.mark.parametrize(
    "old, new",
    [
        ("log.tensorboard", "log.loggers"),
        ("reward.scorers", "reward.functions"),
    ],
)
def test_the_old_name_of_a_field_names_the_new_one(old, new):
  c = config_files.read("configs/dapo.py")
  with pytest.raises(errors.ConfigError, match=f"is now {new}"):
    config.override(c, {old: "x"})


def test_a_full_disk_is_said_once_and_the_run_goes_on(tmp_path, monkeypatch):
  from tensorboardX import event_file_writer

  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(event_file_writer.EventsWriter, "flush", full)
  seen = []
  log, said = log_with(
      tmp_path, "tensorboard", (lambda metrics, step: seen.append(step),)
  )
  fill(log, steps=50)
  assert steps_of(tmp_path) == [*range(1, 51)] == seen
  (line,) = said
  assert "tensorboard is dropped" in line and "No space left" in line


@pytest.mark.parametrize("limit", ["CAPACITY", "PATIENCE", "CLOSING"])
def test_a_logger_that_hangs_delays_nothing(tmp_path, monkeypatch, limit):
  monkeypatch.setattr(loggers, limit, 0.05 if limit != "CAPACITY" else 10)
  release = threading.Event()
  log, said = log_with(tmp_path, "", (lambda *_: release.wait(),))
  start = time.monotonic()
  for step in range(50):
    log.metrics("rl", step, {"train/accuracy": 0.5})
    if limit == "PATIENCE":
      time.sleep(0.002)
  log.close()
  assert time.monotonic() - start < 5
  release.set()
  assert steps_of(tmp_path) == [*range(50)]
  assert len(said) == 1 and "is dropped" in said[0]
  assert json.loads((tmp_path / "metrics.jsonl").open().readline())["step"] == 0


def test_of_a_step_that_is_there_twice_the_newest_line_counts(tmp_path):
  """As after a log that was edited, which a resumed run does not cut."""
  lines = [
      dict(stage="sft", step=9, loss=2.0),
      dict(stage="sft", step=9, accuracy=0.5),  # another line of that step
      dict(stage="rl", step=1, reward=0.1),
      dict(stage="rl", step=2, reward=0.2),
      dict(stage="evaluate", step=2, accuracy=0.3),
      dict(stage="rl", step=2, reward=0.4, alarm=1),
      dict(stage="evaluate", step=2, accuracy=0.6),
      dict(stage="rl", step=3),
  ]
  text = "".join(json.dumps(x) + "\n" for x in lines)
  (tmp_path / "metrics.jsonl").write_text(text)
  kept = [x for i, x in enumerate(lines) if i not in (3, 4)]
  assert run_log.read_metrics(tmp_path) == kept
  log = run_log.Log(tmp_path)
  assert log.lines() == kept
  log.close()
