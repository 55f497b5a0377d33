"""Models that a test needs beside the tiny one: several KV-cache groups, a LoRA adapter."""

import json
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Weights = dict[str, NDArray[np.float32]]

WINDOW_TOKENS = 128
_VOCAB, _HIDDEN, _INNER, _LAYERS, _HEADS, _KV_HEADS, _HEAD = 8192, 128, 256, 6, 4, 2, 32
_FULL_EVERY = 3


def build_gemma(tiny: Path, folder: Path) -> Path:
    """A random Gemma3: four sliding-window layers, two full ones, three KV-cache groups.

    Its embeddings are tied, as the architecture has them: it tends to repeat tokens, so
    logprobs are what shows a difference.

    Args:
        tiny: folder of the tiny model, for its tokenizer.
        folder: where to build.
    """
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, folder / name)
    kinds = ["full_attention" if at % _FULL_EVERY == 2 else "sliding_attention" for at in range(6)]
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": _VOCAB,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD,
        "query_pre_attn_scalar": _HEAD,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": WINDOW_TOKENS,
        "layer_types": kinds,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    save_file(_gemma_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _gemma_weights() -> Weights:
    rng = np.random.default_rng(3)

    def normal(*size: int, std: float = 0.15) -> NDArray[np.float32]:
        return rng.normal(0.0, std, size).astype(np.float32)

    def zeros(size: int) -> NDArray[np.float32]:
        return np.zeros(size, dtype=np.float32)  # Gemma's norms multiply by 1 + weight

    queries, keys = _HEADS * _HEAD, _KV_HEADS * _HEAD
    weights = {"model.embed_tokens.weight": normal(_VOCAB, _HIDDEN)}
    weights["model.norm.weight"] = zeros(_HIDDEN)
    for layer in range(_LAYERS):
        weights |= {
            f"model.layers.{layer}.{name}.weight": value
            for name, value in {
                "input_layernorm": zeros(_HIDDEN),
                "post_attention_layernorm": zeros(_HIDDEN),
                "pre_feedforward_layernorm": zeros(_HIDDEN),
                "post_feedforward_layernorm": zeros(_HIDDEN),
                "self_attn.q_proj": normal(queries, _HIDDEN),
                "self_attn.k_proj": normal(keys, _HIDDEN),
                "self_attn.v_proj": normal(keys, _HIDDEN),
                "self_attn.o_proj": normal(_HIDDEN, queries),
                "self_attn.q_norm": zeros(_HEAD),
                "self_attn.k_norm": zeros(_HEAD),
                "mlp.gate_proj": normal(_INNER, _HIDDEN),
                "mlp.up_proj": normal(_INNER, _HIDDEN),
                "mlp.down_proj": normal(_HIDDEN, _INNER),
            }.items()
        }
    return weights


def build_adapter(tiny: Path, folder: Path, seed: int) -> Path:
    """A random LoRA adapter of the tiny model, strong enough to change every answer."""
    folder.mkdir(parents=True)
    shape = json.loads((tiny / "config.json").read_text("utf-8"))
    hidden, head = shape["hidden_size"], shape["head_dim"]
    sizes = {
        "q_proj": shape["num_attention_heads"] * head,
        "v_proj": shape["num_key_value_heads"] * head,
    }
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for layer in range(shape["num_hidden_layers"]):
        for name, out in sizes.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = rng.normal(0, 0.2, (8, hidden)).astype(np.float32)
            weights[f"{at}.lora_B.weight"] = rng.normal(0, 0.2, (out, 8)).astype(np.float32)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": sorted(sizes)}
    config |= {"bias": "none", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(tiny)}
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder
