"""Reports to draw, built from simulated passes, and a browser to look at them with."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.bench.report import build_report
from runtime.contract.bench import Objectives, Price
from tests.bench.render.chromium import Page, running_chromium
from tests.bench.simulated import Passed, simulated_pass

EVIL = '</title><script>document.title="taken"</script><img src=http://192.0.2.1/x> $x$ | `y`'
"""As a server's error or a file's name could be."""


def report_of(*passed: Passed) -> dict[str, Any]:
    """The report of passes."""
    return build_report(passed)


@pytest.fixture(scope="session")
def plain() -> dict[str, Any]:
    """Ten conversations of five turns, twice as fast, with think times."""
    return report_of(simulated_pass(2.0, think_s=3.0))


@pytest.fixture(scope="session")
def full() -> dict[str, Any]:
    """Three passes: failures, aborts, differing answers, repeats; caching on; feature off."""
    asked: dict[str, Any] = {
        "objectives": Objectives(ttft_ms=200, tpot_ms=10),
        "price": Price(usd_per_node_hour=60),
    }
    spoilt: dict[str, Any] = {"failures": 0.05, "aborts": 0.03, "differences": 0.05, "repeats": 3}
    return report_of(
        simulated_pass(1.8, 12, think_s=1.0, **spoilt, **asked),
        simulated_pass(1.3, 8, name="caching on", prefill_prefix_caching=True, **asked),
        simulated_pass(1.0, 8, name="feature off", is_feature_on=False, **asked),
    )


@pytest.fixture(scope="session")
def sweep() -> dict[str, Any]:
    """Prefix lengths as published, two clients."""
    return report_of(simulated_pass(2.5, 4, points=(2000, 8000, 16000, 24000), clients=2))


@pytest.fixture(scope="session")
def long() -> dict[str, Any]:
    """Thirty turns, as agents have, and short ones where much is pulled."""
    return report_of(simulated_pass(8.0, 3, 30))


@pytest.fixture(scope="session")
def failed() -> dict[str, Any]:
    """Nothing succeeded, it was stopped, and every text from outside is hostile."""
    info, turns, _ = simulated_pass(2.0, 3, 3, failures=1.0, stopped_by=EVIL, name=EVIL)
    report = report_of((info, turns, []))
    for request in report["requests"]:
        request["error"] = EVIL
    report["environment"]["vllm"] = EVIL
    return report


@pytest.fixture(scope="session")
def single() -> dict[str, Any]:
    """One conversation of two turns: no interval, no percentile but the median."""
    return report_of(simulated_pass(2.0, 1, 2))


@pytest.fixture(scope="session")
def lopsided() -> dict[str, Any]:
    """No turn of the bidirectional arm succeeded."""
    info, turns, samples = simulated_pass(2.0, 4, 3)
    spoilt = simulated_pass(2.0, 4, 3, failures=1.0)[1]
    kept = [turn for turn in turns if turn.arm == "one_way"]
    return report_of((info, kept + [t for t in spoilt if t.arm != "one_way"], samples))


Reports = Callable[[str], dict[str, Any]]
NAMES: Sequence[str] = ("plain", "full", "sweep", "long", "failed", "single", "lopsided")


@pytest.fixture
def named(request: pytest.FixtureRequest) -> Reports:
    """A report by the name of its fixture."""

    def get(name: str) -> dict[str, Any]:
        found: dict[str, Any] = request.getfixturevalue(name)
        return found

    return get


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Page]:
    """A headless Chromium with one tab."""
    async with running_chromium(tmp_path / "chromium") as page:
        yield page
