"""The tiny model is the same everywhere and is built once."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from runtime.bench.workloads.synthetic import round_trip_ids
from runtime.local.model import ModelShape, build_model, load_tokenizer

SMALL = ModelShape(vocab_size=1024, layers=1)


def test_second_build_returns_the_first(tmp_path: Path) -> None:
    """The cache is keyed by content: nothing is built twice."""
    steps: list[str] = []
    first = build_model(tmp_path, SMALL, steps.append)
    again = build_model(tmp_path, SMALL, steps.append)
    assert first == again
    assert len(steps) == 2
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_build_is_reproducible(tmp_path: Path) -> None:
    """Two machines get the same bytes."""
    one, two = build_model(tmp_path / "a", SMALL), build_model(tmp_path / "b", SMALL)
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json", "model.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_other_shape_is_another_folder(tmp_path: Path) -> None:
    """A changed seed never returns the old weights."""
    one = build_model(tmp_path, SMALL)
    two = build_model(tmp_path, ModelShape(vocab_size=1024, layers=1, seed=1))
    assert one != two


def test_interrupted_build_leaves_no_model(tmp_path: Path) -> None:
    """A half-built folder is never taken for a model."""

    def interrupt(_step: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_model(tmp_path, SMALL, interrupt)
    assert list(tmp_path.iterdir()) == []


def test_model_is_as_large_as_documented(tmp_path: Path) -> None:
    """6.6 million parameters, untied, and a vocabulary with enough whole words."""
    folder = build_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    assert sum(one.size for one in weights.values()) == pytest.approx(6.6e6, rel=0.02)
    assert json.loads((folder / "config.json").read_text("utf-8"))["tie_word_embeddings"] is False
    assert len(round_trip_ids(load_tokenizer(folder))) > 1024
