"""`turnback bench` as a user meets it, with mock engines for speed."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.bench.folder import PassFolder
from runtime.bench.results import found_passes
from runtime.contract.profile import PROFILES, load_profile
from runtime.local.model import build_model
from tests.engine.conftest import read_addresses
from tests.local.test_demo import assert_four_parts, run, started

QUICK = ("--conversations", "2", "--turns", "2")
PASSES = ["caching-off", "caching-on", "feature-off"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, built once."""
    return build_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory, model: Path
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """All three passes, and a bar that nothing reaches."""
    out = tmp_path_factory.mktemp("out")
    arguments = ("--mock", "--model", str(model), "--passes", ",".join(PASSES), "--clients", "2")
    return out / "bench", run("bench", out, *QUICK, *arguments, "--min-speedup", "1000")


def test_passes_are_never_mixed(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Each pass has servers and figures of its own; the baseline has one arm and no ratio."""
    folder, _ = ran
    report = json.loads((folder / "report.json").read_text("utf-8"))
    passes = [report, *report["other_passes"]]
    assert [each["pass"]["name"] for each in passes] == PASSES
    assert [each["pass"]["prefill_prefix_caching"] for each in passes] == [False, True, False]
    assert [sorted(each["arms"]) for each in passes] == [["bidirectional", "one_way"]] * 2 + [
        ["one_way"]
    ]
    assert passes[2]["speedup"]["overall"]["ratio"] is None
    assert all(each["complete"] for each in passes)


def test_bar_that_is_missed(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Exit code 1 and a sentence; the report is whole all the same."""
    folder, done = ran
    assert done.returncode == 1, done.stderr
    assert "at least 1000 is asked" in done.stderr
    for name in ("report.json", "report.html", "requests.csv", "summary.md"):
        assert (folder / name).stat().st_size > 0


def test_what_ran_is_kept(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The passes' folders have all turns, and readings of all three servers."""
    folder, _ = ran
    _, (info, turns, samples) = found_passes(folder)[0]
    assert (info.bench.clients, info.stopped_by) == (2, None)
    assert sum(not each.is_again for each in turns) == 8
    assert {each.role for each in samples} == {"prefill", "decode", "router"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--passes", "caching-off,nonsense"), "nonsense"),
        (("--passes", "caching-on,caching-on"), "each once"),
        (("--profile", "nonsense"), "qwen3-32b"),
        (("--clients", "0"), "clients"),
        (("--abort-share", "2"), "abort_share"),
        (("--slo-ttft-ms", "-1"), "ttft_ms"),
        (("--workload", "no-such-file.json"), "no-such-file.json"),
        (("--url", "http://127.0.0.1:9"), "--model, --mock"),
        (("--feature-off", "--pass-name", "x"), "--feature-off"),
        (("--tokenizer", "x", "--prefill", "http://x:1"), "--tokenizer"),
        (("--profile", "no-such-file.toml"), "no-such-file.toml"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], named: str, tmp_path: Path, model: Path) -> None:
    """Told in four parts with exit code 2, before anything starts."""
    done = run("bench", tmp_path, "--mock", "--model", str(model), *arguments)
    assert done.returncode == 2, done.stderr
    assert_four_parts(done.stderr)
    assert named in done.stderr


def test_a_router_without_a_tokenizer(tmp_path: Path) -> None:
    """The options of a run against a router, less the one that is always needed."""
    done = run("bench", tmp_path, "--url", "http://127.0.0.1:9")
    assert done.returncode == 2, done.stderr
    assert_four_parts(done.stderr)
    assert "--tokenizer" in done.stderr


def test_profile_that_is_none(tmp_path: Path) -> None:
    """Each bad value of a user's own profile is named, and so is a file that is no TOML."""
    path = tmp_path / "ours.toml"
    text = (PROFILES / "tiny.toml").read_text("utf-8")
    wrongs = ((text.replace("turns = 5", "turns = 1"), "workload.turns"), ("= 1", "be read"))
    for wrong, named in wrongs:
        path.write_text(wrong, "utf-8")
        done = run("bench", tmp_path, "--profile", str(path))
        assert done.returncode == 2, done.stderr
        assert_four_parts(done.stderr)
        assert named in done.stderr
        assert str(path) in done.stderr


def test_agents_of_a_users_own_profile(tmp_path: Path, model: Path) -> None:
    """A profile's file is how agents with tools are asked for."""
    path = tmp_path / "agents.toml"
    text = (PROFILES / "tiny.toml").read_text("utf-8").replace('name = "tiny"', 'name = "agents"')
    path.write_text(f"{text}\n[workload.agentic]\ntool_share = 1.0\n", "utf-8")
    arguments = ("--conversations", "2", "--turns", "3", "--think-scale", "0")
    done = run(
        *("bench", tmp_path, "--mock", "--model", str(model), "--profile", str(path), *arguments)
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench" / "report.json").read_text("utf-8"))
    assert report["pass"]["workload"] == "agents"
    assert report["workload"]["workload"]["agentic"]["tool_share"] == 1.0
    assert report["exactness"]["compared"] == report["exactness"]["equal"] == 6
    assert (tmp_path / "bench" / "ttft.svg").exists()


def test_published_profiles_have_their_baseline() -> None:
    """A pass with the feature off on both servers, unless the passes are chosen."""
    from runtime.cli_bench import _pass_names

    assert _pass_names(None, load_profile("tiny")) == ["caching-off"]
    for name in ("qwen3-32b", "glm-5-fp8"):
        assert _pass_names(None, load_profile(name)) == ["caching-off", "feature-off"]
    assert _pass_names("caching-on", load_profile("qwen3-32b")) == ["caching-on"]


def test_nobody_at_the_url(tmp_path: Path, model: Path) -> None:
    """A router that cannot be reached is named; nothing is measured."""
    done = run("bench", tmp_path, "--url", "http://127.0.0.1:9", "--tokenizer", str(model))
    assert done.returncode == 2, done.stderr
    assert_four_parts(done.stderr)
    assert "http://127.0.0.1:9" in done.stderr


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[dict[str, str]]:
    """Addresses of a mock cluster."""
    out = tmp_path_factory.mktemp("up")
    with started("up", out, "--mock", "--model", str(model)) as process:
        yield read_addresses(process)
        process.terminate()
        process.wait(timeout=30)


def test_against_a_router(tmp_path: Path, model: Path, up: dict[str, str]) -> None:
    """Two passes into one folder become one report; a name can be taken once."""
    engines = ("--prefill", up["prefill_url"], "--decode", up["decode_url"])
    remote = ("--url", up["router_url"], "--tokenizer", str(model), *QUICK, *engines)
    first = run("bench", tmp_path, *remote, "--pass-name", "a", "--min-speedup", "1000")
    assert first.returncode == 1, first.stderr
    # Bars are of the pass that ran, not of the report's main one.
    second = run("bench", tmp_path, *remote, "--pass-name", "b")
    assert second.returncode == 0, second.stderr
    off = run(
        *("bench", tmp_path, *remote, "--pass-name", "off", "--feature-off", "--min-speedup", "0")
    )
    assert off.returncode == 1, off.stderr
    assert "no speed-up could be measured" in off.stderr
    report = json.loads((tmp_path / "bench" / "report.json").read_text("utf-8"))
    passes = [report, *report["other_passes"]]
    assert [one["pass"]["name"] for one in passes] == ["a", "b", "off"]
    assert report["exactness"]["compared"] == report["exactness"]["equal"] == 4
    again = run("bench", tmp_path, *remote, "--pass-name", "a")
    assert again.returncode == 2
    assert_four_parts(again.stderr)
    assert PassFolder(tmp_path / "bench" / "a").read()[0].stopped_by is None
