"""Trajectories in an environment of `verifiers`, which calls a model for turns.

docs/environments.md tells how to use a copy of this file.
"""

import asyncio
import queue
from concurrent import futures

import aiohttp
import verifiers.v1 as vf
from aiohttp import test_utils, web

from rl_reason.tasks import Row, threads

__all__ = ["Chat"]  # where verifiers looks for the harness
POLICY = {"harness": {"id": "my_verifiers"}, "runtime": {"type": "subprocess"}}
CONFIG = {"taskset": {"id": "my_taskset"}, "agent": POLICY}
TASKS = 1000  # the first tasks of the taskset
SECONDS = 60  # the time-out for a request of the episode

LOOP = threads.event_loop()  # shared by all episodes
LINES = {}  # trace id -> requests of the episode, replies of the policy


class Chat(vf.Harness[vf.HarnessConfig]):
  """Asks the model for one turn, in this process and without tools."""

  APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
  EXECUTES_CODE = NEEDS_CONTAINER = False

  async def launch(self, ctx, trace, runtime, url, secret, tools, data):
    """Sends the chat to verifiers, which calls `answer`; records the turn."""
    system, chat = self.resolve_prompt(data)
    chat = [vf.UserMessage(content=chat)] if isinstance(chat, str) else chat
    chat = [vf.SystemMessage(content=system), *chat] if system else chat
    body = {"messages": [{"role": x.role, "content": x.content} for x in chat]}
    async with aiohttp.request(
        "POST",
        f"{url}/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {secret}"},
        timeout=aiohttp.ClientTimeout(total=None),
    ) as reply:
      return vf.ProgramResult(int(not reply.ok), "", await reply.text())


async def answer(request):
  """The model endpoint of all episodes: replies with the policy's next turn."""
  asked, said = LINES[request.headers["X-Session-ID"]]
  asked.put((await request.json())["messages"])
  message = {"role": "assistant", "content": await said.get()}
  choice = {"index": 0, "message": message, "finish_reason": "stop"}
  reply = {"id": "0", "object": "chat.completion", "created": 0}
  return web.json_response(reply | {"model": "", "choices": [choice]})


async def serve():
  """Starts the server of all episodes, which runs until the process ends."""
  app = web.Application()
  app.router.add_post("/v1/chat/completions", answer)
  server, shared = test_utils.TestServer(app), ENV.serving()
  await server.start_server()
  await shared.__aenter__()
  client = vf.EvalClientConfig(base_url=str(server.make_url("/v1")))
  return vf.ModelContext("policy", client), shared


async def play(number, *line):
  """Runs an episode and returns its score."""
  model, _ = await asyncio.wrap_future(SHARED)
  traces = []

  def begin(trace):
    traces.append(trace)
    LINES[trace.id] = line

  try:
    task = ALL_TASKS[number]
    episode = await ENV.run_episode(task, model, on_trace=begin)
  finally:
    for trace in traces:
      del LINES[trace.id]
  if not episode.ok or any(trace.is_timeout for trace in traces):
    errors = sum((trace.errors for trace in traces), episode.errors)
    texts = [error.traceback or error.message for error in errors]
    raise RuntimeError("\n".join(texts) or "a time-out of the taskset")
  return sum(trace.reward for trace in traces if trace.agent.trainable)


class Episode:
  """One trajectory; the class is also the task."""

  def problem(self, rng, difficulty):
    """The number of a task."""
    return Row(str(rng.integers(len(ALL_TASKS))), "", difficulty)

  def reset(self, row, rng):
    """Begins an episode; its first messages are the prompt."""
    self.chat, self.asked, self.said = [], queue.SimpleQueue(), asyncio.Queue()
    begun = play(int(row.prompt), self.asked, self.said)
    self.playing = asyncio.run_coroutine_threadsafe(begun, LOOP)
    self.playing.add_done_callback(self.asked.put)
    return self.hear()[0]

  def step(self, response):
    """Sends a turn; returns the messages that follow, or the score."""
    self.chat.append({"role": "assistant", "content": response})
    LOOP.call_soon_threadsafe(self.said.put_nowait, response)
    return self.hear()

  def hear(self):
    """Waits for the next request of the episode, or for its end."""
    found = self.asked.get(timeout=SECONDS)
    if isinstance(found, futures.Future):
      return "", found.result(), True
    old, new = found[: len(self.chat)], found[len(self.chat) :]
    if [x | {"content": x["content"] or ""} for x in old] != self.chat:
      raise ValueError(f"the episode changed {self.chat} to {old}")
    self.chat += new
    return new, 0.0, False

  def __del__(self):
    """Cancels the episode, also after a truncated trajectory."""
    if hasattr(self, "playing"):
      self.playing.cancel()


ENV = vf.load_environment(vf.resolve_env_config(CONFIG))
ALL_TASKS = list(ENV.taskset.take(TASKS))
SHARED = asyncio.run_coroutine_threadsafe(serve(), LOOP)
