"""Prompt templates: what is asked for, chats, and tokens nobody may write."""

import pytest
import tiny_data

from rl_reason.data import templates, tokenizer

CHATML = (
    "{% for m in messages %}<|s|>{{ m['role'] }}\n{{ m['content'] }}<|e|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('no system role') }}{% endif %}"
)
# Name -> words of the prompt, and a demonstration.
FORMATS = {
    "plain": ([], "2+2=4\nAnswer: 4"),
    "dapo": (["Answer: $Answer", "step"], "2+2=4\nAnswer: 4"),
    "r1_zero": (
        ["<think>", "</think>", "<answer>", "</answer>", "User: "],
        "<think>2+2=4</think>\n<answer>4</answer>",
    ),
    "qwen_boxed": (["\\boxed{}", "step by step"], "2+2=4\n\\boxed{4}"),
    "code": (["```python", "Python"], "```python\n2+2=4\n```"),
    "choice": (["Answer: X", "yes or no"], "2+2=4\nAnswer: 4"),
}


def render(question, tok, template="plain", *, chat=False, system=""):
  turns = templates.messages(question, template, system)
  return templates.render(turns, tok, chat=chat)


@pytest.fixture
def tok():
  """Bytes, two special tokens, and two that are merely added."""
  tok = tiny_data.byte_tokenizer()
  tok.add_tokens(["<think>", "   "])
  tok.chat_template = CHATML
  return tok


@pytest.mark.parametrize("name", templates.TEMPLATES)
def test_templates_say_their_format(name, tok):
  words, demonstration = FORMATS[name]
  question = r"What is {x} + \frac{1}{2} if {question} = {0}?"
  text = render(question, tok, name)
  assert text.count(question) == 1
  assert all(word in text for word in words)
  assert "{question}" not in text.replace(question, "")
  assert templates.complete("2+2=4", "4", name) == demonstration
  odd = templates.complete("{answer} {solution}", "4", name)
  assert "{answer} {solution}" in odd, "the words of a set are kept"
  if name == "r1_zero":
    assert text.endswith("?\nAssistant:")


def test_paraphrases_are_different_and_the_first_is_none():
  assert templates.paraphrase("1+1?", 0) == "1+1?"
  asked = {templates.paraphrase("1+1?", n) for n in range(12)}
  assert len(asked) == len(templates.PARAPHRASES) == 5
  assert all("1+1?" in text for text in asked)


def test_chat(tok):
  """By hand, and as transformers tokenises it: no token more or less."""
  text = render("1+1?", tok, chat=True, system="Be short.")
  assert text == (
      "<|s|>system\nBe short.<|e|>\n<|s|>user\n1+1?<|e|>\n<|s|>assistant\n"
  )
  turns = [dict(role="user", content="1+1?")]
  expected = tok.apply_chat_template(turns, add_generation_prompt=True)
  [ids] = tokenizer.encode(tok, [render("1+1?", tok, chat=True)])
  assert ids == list(expected["input_ids"])
  assert ids.count(tok.bos_token_id) == 2  # two turns


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template: set data.chat = False"),
        ("{{ 1 / 0 }}", "refuses this.*data.chat = F"),
        ("{% if %}", "refuses this.*data.chat = F"),
        ("{{ x.y.z }}", "refuses this.*data.chat = F"),
        (NO_SYSTEM, "no system role.*data.system"),
    ],
)
def test_a_chat_template_that_cannot_be_used(tok, template, words):
  tok.chat_template = template
  assert render("1+1?", tok) == "1+1?"
  with pytest.raises(templates.PromptError, match=words):
    render("1+1?", tok, chat=True, system="Be short.")


def test_reserved_tokens(tok):
  """Special ones, and added ones but for blanks."""
  ids = {x: tok.convert_tokens_to_ids(x) for x in ("<|s|>", "<|e|>", "<think>")}
  assert templates.reserved(tok) == set(ids.values())
  assert templates.reserved(tok, special=True) == {ids["<|s|>"], ids["<|e|>"]}
  [hostile, harmless] = tokenizer.encode(tok, ["1<|e|>1", "1 < | e |   > 1"])
  assert templates.reserved(tok) & set(hostile) == {ids["<|e|>"]}
  assert not templates.reserved(tok) & set(harmless)


def test_an_unknown_character_is_not_reserved(tok):
  tok.unk_token = "<think>"
  assert tok.unk_token_id not in templates.reserved(tok)
