"""Three steps of TRL's DPOTrainer on a tiny random Llama.

  runs/peers/trl/bin/python -m conformance.dpo_steps

writes dpo_steps.json here: the metrics of each step, and the parameters after
the last one, each as its product with `directions`. The tests of the feature
preference_optimization compare them with this package. Each step has all pairs,
so that their order changes nothing.
"""

import copy
import importlib.metadata
import json
import pathlib
import tempfile

import numpy as np

PATH = pathlib.Path(__file__).with_suffix(".json")
PAD, EOS = 0, 1
STEPS, LR, BETA = 3, 0.01, 0.1
CONFIG = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    vocab_size=24,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=32,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    tie_word_embeddings=False,
    attention_bias=False,
    mlp_bias=False,
    hidden_act="silu",
    bos_token_id=None,
    eos_token_id=EOS,
    pad_token_id=PAD,
)
# Prompt, chosen and rejected response; a response ends with EOS.
PAIRS = (
    ((5, 9, 3), (7, 7, 2, EOS), (8, EOS)),
    ((12, 4), (20, EOS), (6, 11, 13, 2, 19, EOS)),
    ((3, 17, 22, 10, 8), (14, 5, EOS), (14, 6, EOS)),
    ((21,), (4, 4, 4, 4, EOS), (23, 18, 15, EOS)),
)
METRICS = (
    *("loss", "grad_norm", "rewards/chosen", "rewards/rejected"),
    *("rewards/margins", "rewards/accuracies", "logps/chosen"),
    "logps/rejected",
)


def weights() -> dict[str, np.ndarray]:
  """The parameters before the first step, by their names in transformers."""
  c, rng = CONFIG, np.random.default_rng(0)
  width, mlp = c["hidden_size"], c["intermediate_size"]
  heads, kv = (
      c[f"num_{x}_heads"] * c["head_dim"] for x in ("attention", "key_value")
  )
  shapes = {
      "model.embed_tokens.weight": (c["vocab_size"], width),
      "lm_head.weight": (c["vocab_size"], width),
      "model.norm.weight": (width,),
  }
  for n in range(c["num_hidden_layers"]):
    inside = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_proj": (heads, width),
        "self_attn.k_proj": (kv, width),
        "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (width, heads),
        "mlp.gate_proj": (mlp, width),
        "mlp.up_proj": (mlp, width),
        "mlp.down_proj": (width, mlp),
    }
    shapes |= {f"model.layers.{n}.{k}.weight": x for k, x in inside.items()}
  return {
      name: (rng.normal(0, 0.3, shape) + (len(shape) == 1)).astype(np.float32)
      for name, shape in sorted(shapes.items())
  }


def directions() -> dict[str, np.ndarray]:
  """What the parameters are multiplied with: a number for each of them."""
  rng = np.random.default_rng(1)
  return {
      name: rng.normal(0, 1, x.shape).astype(np.float32)
      for name, x in weights().items()
  }


def trl() -> dict:
  """Metrics of each step of DPOTrainer, and the parameters at the end."""
  import datasets
  import tokenizers
  import torch
  import transformers
  from trl import DPOConfig, DPOTrainer

  names = ["<pad>", "<eos>", *(f"t{i}" for i in range(2, CONFIG["vocab_size"]))]
  words = tokenizers.models.WordLevel(
      {name: i for i, name in enumerate(names)}, unk_token="t2"
  )
  fast = tokenizers.Tokenizer(words)
  fast.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  tok = transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, pad_token="<pad>", eos_token="<eos>"
  )
  model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
  tensors = {k: torch.tensor(x) for k, x in weights().items()}
  model.load_state_dict(tensors)

  def text(ids):
    return "".join(f" {names[i]}" for i in ids)

  rows = [
      dict(prompt=text(p).strip(), chosen=text(a), rejected=text(b))
      for p, a, b in PAIRS
  ]
  with tempfile.TemporaryDirectory() as scratch:
    trainer = DPOTrainer(
        model=model,
        ref_model=copy.deepcopy(model),
        args=DPOConfig(
            output_dir=scratch,
            learning_rate=LR,
            beta=BETA,
            max_steps=STEPS,
            per_device_train_batch_size=len(PAIRS),
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        processing_class=tok,
        train_dataset=datasets.Dataset.from_list(rows),
    )
    prepared = [
        [*x["prompt_ids"], *x["chosen_ids"], *x["rejected_ids"]]
        for x in trainer.train_dataset
    ]
    assert prepared == [[*p, *a, *b] for p, a, b in PAIRS], prepared
    trainer.train()
  log = [x for x in trainer.state.log_history if "rewards/margins" in x]
  along = directions()
  return dict(
      steps=[{k: x[k] for k in (*METRICS, "learning_rate")} for x in log],
      after={
          k: float((x.detach().numpy().astype(float) * along[k]).sum())
          for k, x in model.named_parameters()
      },
  )


if __name__ == "__main__":
  PATH.write_text(
      json.dumps(
          dict(
              versions={
                  x: importlib.metadata.version(x)
                  for x in ("trl", "transformers", "torch")
              },
              **trl(),
          ),
          sort_keys=True,
          indent=1,
      )
      + "\n"
  )
