"""vLLM counts under the names that this kit reads."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="run by the engine environment (make test does)")

from runtime import engine_api
from runtime.launch.node_metrics import ENGINE_SOURCES

FILES = (
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats",
    "vllm.v1.metrics.loggers",
)
NAMES = {name for each in ENGINE_SOURCES for name in each.samples} | {
    value for value in vars(engine_api).values() if isinstance(value, str) and value[:5] == "vllm:"
}


def _text(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text("utf-8")


@pytest.mark.parametrize("sample", sorted(NAMES))
def test_sample_is_one_of_the_engine(sample: str) -> None:
    """A counter's sample ends in _total, a histogram's in _sum or _count. An alarm on another
    name would be silent for ever."""
    named = re.sub(r"_(total|sum|count)$", "", sample)
    texts = "".join(map(_text, FILES))
    assert re.search(rf'name="{re.escape(named)}(_total)?"|"{re.escape(named)}"', texts), sample
