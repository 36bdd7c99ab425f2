"""Prompt templates: what is asked for, chats, and tokens nobody may write."""

import pytest
import tokenizers
import transformers

from rl_reason.data import templates, tokenizer

CHATML = (
    "{% for m in messages %}<|s|>{{ m['role'] }}\n{{ m['content'] }}<|e|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('no system role') }}{% endif %}" + CHATML
)


@pytest.fixture
def tok():
  """Bytes, two special tokens, and two that are merely added."""
  fast = tokenizers.Tokenizer(tokenizers.models.BPE())
  trainer = tokenizers.trainers.BpeTrainer(
      special_tokens=["<|s|>", "<|e|>"],
      initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
  )
  fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
      add_prefix_space=False
  )
  fast.decoder = tokenizers.decoders.ByteLevel()
  fast.train_from_iterator([""], trainer)
  tok = transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, eos_token="<|e|>", bos_token="<|s|>"
  )
  tok.add_tokens(["<think>", "   "])
  tok.chat_template = CHATML
  return tok


@pytest.mark.parametrize(
    "name, words",
    [
        ("plain", []),
        ("dapo", ["Answer: $Answer", "step"]),
        ("r1_zero", ["<think>", "</think>", "<answer>", "</answer>", "User: "]),
        ("qwen_boxed", ["\\boxed{}", "step by step"]),
        ("code", ["```python", "Python"]),
        ("choice", ["Answer: X", "yes or no"]),
    ],
)
def test_templates_say_their_format(name, words, tok):
  question = r"What is {x} + \frac{1}{2} if {question} = {0}?"
  text = templates.render(question, name, tok)
  assert text.count(question) == 1 and "%s" not in text
  for word in words:
    assert word in text
  assert "{question}" not in text.replace(question, "")


def test_every_template_is_tested_and_asks_once():
  assert len(templates.TEMPLATES) == 6
  for text in (*templates.TEMPLATES.values(), *templates.PARAPHRASES):
    assert text.count("{question}") == 1


def test_r1_zero_ends_where_the_assistant_begins(tok):
  text = templates.render("1+1?", "r1_zero", tok)
  assert text.endswith("\nUser: 1+1?\nAssistant:")


def test_paraphrases_are_different_and_the_first_is_none():
  assert templates.paraphrase("1+1?", 0) == "1+1?"
  asked = {templates.paraphrase("1+1?", n) for n in range(12)}
  assert len(asked) == len(templates.PARAPHRASES) == 5
  assert all("1+1?" in text for text in asked)


def test_chat(tok):
  """By hand, and as transformers tokenises it: no token more or less."""
  text = templates.render("1+1?", "plain", tok, chat=True, system="Be short.")
  assert text == (
      "<|s|>system\nBe short.<|e|>\n<|s|>user\n1+1?<|e|>\n<|s|>assistant\n"
  )
  turns = [dict(role="user", content="1+1?")]
  wanted = tok.apply_chat_template(turns, add_generation_prompt=True)
  [ids] = tokenizer.encode(
      tok, [templates.render("1+1?", "plain", tok, chat=True)]
  )
  assert ids == list(wanted["input_ids"])
  assert ids.count(tok.bos_token_id) == 2  # two turns


def test_a_tokenizer_without_a_chat_template(tok):
  tok.chat_template = None
  assert templates.render("1+1?", "plain", tok) == "1+1?"
  with pytest.raises(templates.PromptError, match="set data.chat = False"):
    templates.render("1+1?", "plain", tok, chat=True)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{% if %}",
        "{{ x.y.z }}",
        "{{ messages + 1 }}",
    ],
)
def test_a_chat_template_that_raises(tok, template):
  """A template is a program: it raises what it likes."""
  tok.chat_template = template
  with pytest.raises(
      templates.PromptError, match="refuses this.*data.chat = F"
  ):
    templates.render("1+1?", "plain", tok, chat=True)


def test_a_chat_template_without_a_system_turn(tok):
  tok.chat_template = NO_SYSTEM
  templates.render("1+1?", "plain", tok, chat=True)
  with pytest.raises(
      templates.PromptError, match="no system role.*data.system"
  ):
    templates.render("1+1?", "plain", tok, chat=True, system="Be short.")


def test_reserved_tokens(tok):
  """Special ones, and added ones but for blanks."""
  ids = {x: tok.convert_tokens_to_ids(x) for x in ("<|s|>", "<|e|>", "<think>")}
  assert templates.reserved(tok) == set(ids.values())
  assert templates.reserved(tok, special=True) == {ids["<|s|>"], ids["<|e|>"]}
  [hostile, harmless] = tokenizer.encode(tok, ["1<|e|>1", "1 < | e |   > 1"])
  assert templates.reserved(tok) & set(hostile) == {ids["<|e|>"]}
  assert not templates.reserved(tok) & set(harmless)


def test_an_unknown_character_is_not_reserved():
  fast = tokenizers.Tokenizer(
      tokenizers.models.WordLevel({"?": 0, "</s>": 1, "1": 2}, unk_token="?")
  )
  fast.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
  tok = transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, eos_token="</s>", unk_token="?"
  )
  assert templates.reserved(tok) == {1}


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("plain", "2+2=4\nAnswer: 4"),
        ("dapo", "2+2=4\nAnswer: 4"),
        ("r1_zero", "<think>2+2=4</think>\n<answer>4</answer>"),
        ("qwen_boxed", "2+2=4\n\\boxed{4}"),
        ("code", "```python\n2+2=4\n```"),
        ("choice", "2+2=4\nAnswer: 4"),
    ],
)
def test_a_solution_takes_the_form_that_the_template_asks_for(template, wanted):
  assert templates.complete("2+2=4", "4", template) == wanted
  odd = templates.complete("{answer} {solution}", "4", template)
  assert "{answer} {solution}" in odd, "what a set says stays as it is"


def test_every_template_has_a_form():
  assert templates.RESPONSES.keys() == templates.TEMPLATES.keys()
