"""`turnback demo` and `up` as a user meets them, with mock engines for speed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime.local.bench import keep_earlier_results
from runtime.local.checks import free_ports
from runtime.local.model import build_model, check_model

QUICK = ("--mock", "--conversations", "2", "--turns", "2")


def command(name: str, out: Path, *arguments: str) -> list[str]:
    """The command line of a subcommand whose models are shared by all tests."""
    return [sys.executable, "-m", "runtime.cli", name, "--out", str(out), *arguments]


def run(name: str, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(name, out, *arguments), capture_output=True, text=True, timeout=120, check=False
    )


@contextmanager
def started(name: str, out: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running command that is ended whatever happens."""
    with subprocess.Popen(
        command(name, out, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Any, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    below: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text("ascii").split()):
            below += [child, *descendants(child)]
    return below


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8").replace("\0", " ")
    except OSError:
        return ""


def engine_of(pid: int, role: str) -> int:
    """The mock engine itself, not its guard."""
    return next(
        child
        for child in descendants(pid)
        if f"--role {role}" in (line := cmdline(child)) and "guard.py" not in line
    )


def none_left(pids: list[int]) -> bool:
    return not any(cmdline(pid) for pid in pids)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, built once."""
    return build_model(tmp_path_factory.mktemp("models"))


def assert_four_parts(text: str) -> None:
    for part in ("error:", "got:", "allowed:", "fix:"):
        assert part in text, text


def test_whole_demo_on_mock_engines(tmp_path: Path, model: Path) -> None:
    """From nothing to a whole report: answers equal, history pulled, and marked as mock."""
    done = run("demo", tmp_path, *QUICK, "--model", str(model))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "demo" / "report.json").read_text("utf-8"))
    assert report["complete"]
    assert report["environment"]["engine"] == "mock"
    exactness = report["exactness"]
    assert (exactness["compared"], exactness["equal"], exactness["ties"]) == (4, 4, 0)
    assert exactness["differences"] == []
    second = report["arms"]["bidirectional"]["turns"][1]
    assert second["pulled_prompt_tokens"] > 0
    assert second["prefill"]["reasons"] == second["decode"]["reasons"] == {"pulled": 2}
    assert second["pulled_answer_tokens"] == second["returnable_answer_tokens"] > 0
    assert report["arms"]["one_way"]["turns"][1]["pulled_prompt_tokens"] == 0
    assert report["engine"]["prefill"]["nixl_reads"] == 2
    for role in ("prefill", "decode"):
        assert report["engine"][role]["reads_after_free"] == 0
    assert "MOCK ENGINE" in done.stdout
    assert str(tmp_path / "demo" / "logs") in done.stdout.replace("\n", "")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_interrupted_demo_keeps_what_was_measured(
    signum: int, code: int, tmp_path: Path, model: Path
) -> None:
    """Ctrl-C in mid-run: exit 130, the report is marked, no process is left."""
    turns = tmp_path / "demo" / "caching-off" / "turns.jsonl"
    arguments = ("--mock", "--conversations", "50", "--model", str(model))
    with started("demo", tmp_path, *arguments) as process:
        wait_for(lambda: turns.exists() and turns.read_text("utf-8").count("\n") >= 3)
        below = descendants(process.pid)
        process.send_signal(signum)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == code, output
    assert "interrupted" in output
    report = json.loads((tmp_path / "demo" / "report.json").read_text("utf-8"))
    assert (report["complete"], report["stopped_by"]) == (False, "interrupted")
    assert sum(arm["requests"] for arm in report["arms"].values()) >= 3
    assert len(below) >= 6
    wait_for(lambda: none_left(below), 10)


@pytest.mark.parametrize("moment_s", [0.0, 0.3, 1.0, 2.0])
def test_interrupt_at_any_moment_leaves_nothing(
    moment_s: float, tmp_path: Path, model: Path
) -> None:
    """Ctrl-C before, during and after the start ends in 130 without a traceback."""
    arguments = ("--mock", "--conversations", "50", "--model", str(model))
    with started("demo", tmp_path, *arguments) as process:
        wait_for(lambda: "SigCgt" in handled(process.pid))
        time.sleep(moment_s)
        below = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    wait_for(lambda: none_left(below), 10)


def handled(pid: int) -> str:
    """`SigCgt` once the process handles SIGTERM (which `turnback` does when it begins)."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("SigCgt") and int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return "SigCgt"
    return ""


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_killed_engine_ends_the_demo_and_keeps_results(
    role: str, tmp_path: Path, model: Path
) -> None:
    """SIGKILL of an engine in mid-run: exit 4, its log is named, the report is partial."""
    turns = tmp_path / "demo" / "caching-off" / "turns.jsonl"
    arguments = ("--mock", "--conversations", "50", "--model", str(model))
    with started("demo", tmp_path, *arguments) as process:
        wait_for(lambda: turns.exists() and turns.read_text("utf-8").count("\n") >= 3)
        below = descendants(process.pid)
        os.kill(engine_of(process.pid, role), signal.SIGKILL)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 4, output
    assert_four_parts(output)
    assert "SIGKILL" in output
    assert f"{role}.log" in output.replace("\n", "")
    report = json.loads((tmp_path / "demo" / "report.json").read_text("utf-8"))
    assert report["stopped_by"] == f"{role} ended while it served: SIGKILL"
    wait_for(lambda: none_left(below), 10)


def test_port_in_use(tmp_path: Path) -> None:
    """A taken port is found before anything starts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("up", tmp_path, "--mock", "--port", str(port))
    assert done.returncode == 2
    assert_four_parts(done.stderr)
    assert f"127.0.0.1:{port}" in done.stderr


def _break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{", "utf-8")


def _break_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def _break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}", "utf-8")


def _lose_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("harm", [_break_config, _break_weights, _break_tokenizer, _lose_weights])
def test_broken_model_folder(harm: Any, tmp_path: Path, model: Path) -> None:
    """A model that no engine could serve is refused with the file's own problem."""
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    check_model(folder)
    harm(folder)
    done = run("demo", tmp_path / "out", *QUICK, "--model", str(folder))
    assert done.returncode == 2
    assert_four_parts(done.stderr)
    assert "model folder is broken" in done.stderr


def test_missing_model_folder(tmp_path: Path) -> None:
    """The folder that was given is named."""
    done = run("demo", tmp_path, *QUICK, "--model", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert_four_parts(done.stderr)
    assert "nowhere" in done.stderr


def _environment(folder: Path, script: str) -> Path:
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    python.chmod(0o755)
    return folder


VERSIONS = '{"python":"3.11","vllm":%s,"nixl":"1.5.1","torch":"2","turnback":"0"}'


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (None, "engine environment not found"),
        ("exit 3", "engine environment is broken"),
        ("echo nonsense", "engine environment is broken"),
        ("echo '" + VERSIONS % "null" + "'", "engine environment is incomplete"),
    ],
)
def test_unusable_engine_environment(script: str | None, told: str, tmp_path: Path) -> None:
    """Missing, broken and incomplete environments are told apart, and `make setup` is named."""
    folder = tmp_path / "venv"
    if script is not None:
        _environment(folder, script)
    done = run("demo", tmp_path / "out", "--engine-environment", str(folder))
    assert done.returncode == 2
    assert_four_parts(done.stderr)
    assert told in done.stderr
    assert "make setup" in done.stderr


def test_unsupported_engine_version(tmp_path: Path) -> None:
    """Another vLLM is refused with the list of those that are accepted."""
    folder = _environment(tmp_path / "venv", "echo '" + VERSIONS % '"0.31.0"' + "'")
    done = run("demo", tmp_path / "out", "--engine-environment", str(folder))
    assert done.returncode == 2
    assert "0.31.0" in done.stderr
    assert "0.32.x, 0.33.x" in done.stderr


def test_bad_router_settings(tmp_path: Path) -> None:
    """Settings that cannot work are explained, all of them."""
    argv = [sys.executable, "-m", "runtime.cli", "router", "--prefill", "http://p"]
    argv += ["--decode", "http://d", "--decoder-kv-blocks-ttl-s", "5", "--block-size-tokens", "7"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert_four_parts(done.stderr)
    assert "block_size_tokens" in done.stderr


def test_history_that_does_not_fit(tmp_path: Path) -> None:
    """More turns than the model's length holds are refused before anything starts."""
    done = run("demo", tmp_path, "--mock", "--turns", "20")
    assert done.returncode == 2
    assert_four_parts(done.stderr)
    assert "11792" in done.stderr


def test_reserved_port(tmp_path: Path) -> None:
    """A port below 1024 is refused before the engines are started."""
    done = run("up", tmp_path, "--mock", "--port", "80")
    assert done.returncode == 2
    assert_four_parts(done.stderr)


def test_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """A file in the place of --out is told, without a traceback."""
    (tmp_path / "out").write_text("", "utf-8")
    done = run("demo", tmp_path / "out", *QUICK)
    assert done.returncode == 2
    assert_four_parts(done.stderr)
    assert "Traceback" not in done.stderr


def test_router_port_in_use() -> None:
    """The router alone tells a taken port as the other commands do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        argv = [sys.executable, "-m", "runtime.cli", "router", "--prefill", "http://p"]
        argv += ["--decode", "http://d", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert_four_parts(done.stderr)


def test_earlier_results_are_kept(tmp_path: Path) -> None:
    """A new run moves the old one's folder aside, and never over another."""
    folder = tmp_path / "demo"
    assert keep_earlier_results(folder) is None
    for number in (1, 2):
        folder.mkdir()
        (folder / "report.json").write_text(str(number), "utf-8")
        assert keep_earlier_results(folder) == tmp_path / f"demo.{number}"
    assert (tmp_path / "demo.1" / "report.json").read_text("utf-8") == "1"


def test_free_ports_differ() -> None:
    """Ports asked for together are all different."""
    assert len(set(free_ports(20))) == 20
