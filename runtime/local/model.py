"""The tiny model: a Qwen3 shape with random weights, built in seconds without a download.

The weights are wide enough (standard deviation 0.15, untied embeddings) that every
answer depends on the whole history; with the usual 0.02 the model repeats its last
token and no exactness test could fail.
"""

import hashlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.errors import BadInput

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] or '' }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SYLLABLES = [a + b for a, b in itertools.product("bdfgklmnprstvz", "aeiou")]
_WORDS = 4096


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the model; 6.6 M parameters as given."""

    vocab_size: int = 8192
    hidden_size: int = 256
    intermediate_size: int = 512
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    max_position: int = 32_768
    weight_std: float = 0.15
    seed: int = 20_260


def build_model(
    cache: Path, shape: ModelShape | None = None, on_step: Callable[[str], None] = lambda _: None
) -> Path:
    """Build the model, or return the folder of an earlier build.

    The folder's name carries a hash of everything that shapes its content.

    Args:
        cache: folder that holds built models.
        shape: sizes and seed; the tiny model when None.
        on_step: called with the name of each step of a fresh build.
    """
    shape = shape or ModelShape()
    recipe = json.dumps(asdict(shape), sort_keys=True).encode() + Path(__file__).read_bytes()
    folder = cache / f"tiny-{hashlib.sha256(recipe).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".building-", dir=cache))
    try:
        on_step("training the tokenizer")
        _write_tokenizer(draft, shape)
        on_step("drawing the weights")
        save_file(_weights(shape), draft / "model.safetensors", metadata={"format": "pt"})
        (draft / "config.json").write_text(json.dumps(_config(shape), indent=2), "utf-8")
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def check_model(folder: Path) -> None:
    """Refuse a model folder that no engine could serve, before one is started.

    Raises:
        BadInput: a file is missing or cannot be read.
    """
    fix = "give the folder of a whole model, or leave --model out to build the tiny one"
    allowed = "a folder with config.json, tokenizer.json and readable *.safetensors"
    if not folder.is_dir():
        raise BadInput("model folder not found", got=str(folder), allowed=allowed, fix=fix)
    try:
        json.loads((folder / "config.json").read_text("utf-8"))
        load_tokenizer(folder)
        weights = sorted(folder.glob("*.safetensors"))
        if not weights:
            raise FileNotFoundError(f"no *.safetensors in {folder}")
        for path in weights:
            with safe_open(path, framework="numpy"):
                pass
    except (OSError, ValueError, SafetensorError) as error:
        raise BadInput(
            "model folder is broken", got=f"{folder}: {error}", allowed=allowed, fix=fix
        ) from error


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read tokenizer.json.

    Raises:
        ValueError: it is missing or broken (the library raises bare exceptions).
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"no tokenizer.json in {folder}")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no exception type of its own
        raise ValueError(f"tokenizer.json cannot be read: {error}") from error


def _words(rng: np.random.Generator) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < _WORDS:
        words["".join(rng.choice(_SYLLABLES, size=rng.integers(2, 5)))] = None
    return list(words)


def _corpus(seed: int) -> Iterator[str]:
    """Made-up words at falling frequencies, so that training does not depend on the machine."""
    rng = np.random.default_rng(seed)
    words = _words(rng)
    for rank, word in enumerate(words):
        yield " ".join([word] * (2 + 40_000 // (rank + 400)))
    for _ in range(200):
        yield " " + " ".join(rng.choice(words, size=50)) + ".\n"


def _write_tokenizer(folder: Path, shape: ModelShape) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(shape.seed), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": shape.max_position,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), "utf-8")


def _config(shape: ModelShape) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
        "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
    }


def _weights(shape: ModelShape) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(shape.seed)

    def normal(*size: int) -> NDArray[np.float32]:
        return rng.normal(0.0, shape.weight_std, size).astype(np.float32)

    def ones(size: int) -> NDArray[np.float32]:
        return np.ones(size, dtype=np.float32)

    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {
        "model.embed_tokens.weight": normal(shape.vocab_size, hidden),
        "lm_head.weight": normal(shape.vocab_size, hidden),
        "model.norm.weight": ones(hidden),
    }
    for layer in range(shape.layers):
        weights |= {
            f"model.layers.{layer}.{name}.weight": value
            for name, value in {
                "input_layernorm": ones(hidden),
                "post_attention_layernorm": ones(hidden),
                "self_attn.q_proj": normal(queries, hidden),
                "self_attn.k_proj": normal(keys, hidden),
                "self_attn.v_proj": normal(keys, hidden),
                "self_attn.o_proj": normal(hidden, queries),
                "self_attn.q_norm": ones(shape.head_dim),
                "self_attn.k_norm": ones(shape.head_dim),
                "mlp.gate_proj": normal(inner, hidden),
                "mlp.up_proj": normal(inner, hidden),
                "mlp.down_proj": normal(hidden, inner),
            }.items()
        }
    return weights
