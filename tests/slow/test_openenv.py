"""The adapter of docs/environments.md with a server of the package openenv."""

import re
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, child_env

from rl_reason.features.environments import factory
from rl_reason.features.environments.guess import Guess

pytestmark = pytest.mark.slow
SERVER = """
import sys
import numpy as np
import uvicorn
from openenv.core import env_server
from rl_reason.features.environments.guess import Guess

class Say(env_server.Action):
  message: str

class Heard(env_server.Observation):
  message: str

class Game(env_server.Environment):
  SUPPORTS_CONCURRENT_SESSIONS = True
  state = env_server.State()

  def reset(self, seed=None, episode_id=None, **_):
    row = Guess.problem(np.random.default_rng(seed), 4)
    self.game = Guess()
    self.game.reset(row, None)
    return Heard(message=row.prompt)

  def step(self, action, timeout_s=None, **_):
    said, reward, over = self.game.step(action.message)
    return Heard(message=said, reward=reward, done=over)

app = env_server.create_fastapi_app(Game, Say, Heard, max_concurrent_envs=8)
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
"""


def test_a_server_plays_the_game_itself(tmp_path, monkeypatch):
  """Prompts, observations, rewards and ends, in several sessions at once."""
  pytest.importorskip("openenv.core")
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  page = (ROOT / "docs" / "environments.md").read_text()
  blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
  [adapter] = [x for x in blocks if "GenericEnvClient" in x]
  (tmp_path / "my_openenv.py").write_text(adapter.replace("8000", str(port)))
  monkeypatch.syspath_prepend(str(tmp_path))
  argv = [sys.executable, "-c", SERVER, str(port)]
  server = subprocess.Popen(argv, env=child_env())
  try:
    for _ in range(600):
      with socket.socket() as up:
        if up.connect_ex(("127.0.0.1", port)) == 0:
          break
      time.sleep(0.2)
    from my_openenv import Remote

    assert factory.find("my_openenv:Remote", None) is Remote
    rng = np.random.default_rng(0)
    games = [(Remote(), Remote().problem(rng, 0)) for _ in range(4)]
    for remote, row in games:
      local = Guess.problem(np.random.default_rng(int(row.prompt)), 4)
      assert remote.reset(row, rng) == local.prompt
    for remote, row in games:
      local = Guess.problem(np.random.default_rng(int(row.prompt)), 4)
      turns = ["?", *Guess.demonstrate(local, "bisect", rng)]
      game = Guess()
      game.reset(local, rng)
      assert [remote.step(x) for x in turns] == [game.step(x) for x in turns]
  finally:
    server.kill()
    server.wait()
