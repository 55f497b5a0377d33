"""What a machine says of its process."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from runtime.contract.status import (
    NODE_UNIT,
    ROUTER_UNIT,
    NodeReport,
    NodeStatus,
    arguments_generation,
)
from runtime.errors import BadInput, StartFailed
from runtime.launch.node_report import node_report
from tests.router.fleet import (
    HI,
    listening,
    running_fleet,
    until,
    unused_port,
    url_of,
    write_tokenizer,
)


def write(folder: Path, **fields: object) -> Path:
    """A status file."""
    status = {"role": "decode", "generation": "ab12"} | fields
    path = folder / "status.json"
    path.write_text(NodeStatus.model_validate(status).model_dump_json(), "utf-8")
    return path


async def test_engine_tells_what_it_was_started_with_and_what_runs(tmp_path: Path) -> None:
    """Requests that run and those that wait are counted while they do."""
    write_tokenizer(tmp_path)
    async with running_fleet(tmp_path, engine={"token_ms": 200.0}) as fleet:
        path = write(
            tmp_path,
            url=url_of(fleet.decodes[0]),
            decoder_kv_blocks_ttl_s=480,
            kv_lease_duration_s=30,
        )
        idle = await asyncio.to_thread(node_report, path)
        turn = asyncio.create_task(fleet.post(HI | {"max_tokens": 5}))
        await until(lambda: fleet.decodes[0].ranks[0].running_count)
        busy = await asyncio.to_thread(node_report, path)
        await turn
        after = await asyncio.to_thread(node_report, path)
    assert idle == after
    assert idle == NodeReport(
        generation="ab12", ttl_s=480, lease_s=30, is_ready=True, running_requests=0
    )
    assert busy.running_requests == 1


async def test_router_tells_how_long_it_has_been_idle(tmp_path: Path) -> None:
    """0 while a turn runs; from its end on the time since."""
    write_tokenizer(tmp_path)
    async with running_fleet(tmp_path, engine={"token_ms": 100.0}) as fleet:
        path = write(tmp_path, role="router", url=fleet.url)
        turn = asyncio.create_task(fleet.post(HI | {"max_tokens": 5}))
        await until(lambda: fleet.turns.admission.running)
        busy = await asyncio.to_thread(node_report, path)
        await turn
        await asyncio.sleep(0.05)
        after = await asyncio.to_thread(node_report, path)
    assert (busy.is_ready, busy.running_requests, busy.idle_s) == (True, 1, 0.0)
    assert after.running_requests == 0
    assert after.idle_s is not None
    assert 0.05 <= after.idle_s < 5


def test_no_status_is_no_process(tmp_path: Path) -> None:
    """The file lies in the unit's runtime folder and ends with it."""
    assert node_report(tmp_path / "status.json") == NodeReport()


def test_process_without_a_status_is_not_taken_for_none(tmp_path: Path) -> None:
    """An image whose unit writes none: a restart without a drain would cut its requests off."""
    with pytest.raises(StartFailed, match="nothing tells"):
        node_report(tmp_path / "status.json", is_active=lambda: True)


@pytest.mark.parametrize(("code", "is_told"), [(0, True), (3, False)])
def test_systemd_is_asked_for_both_units(
    code: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Active ends with 0; a unit that is starting over after a crash holds nothing."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/bash\necho "$@" >"{tmp_path}/asked"\nexit {code}\n', "utf-8")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if is_told:
        with pytest.raises(StartFailed):
            node_report(tmp_path / "status.json")
    else:
        assert node_report(tmp_path / "status.json") == NodeReport()
    asked = (tmp_path / "asked").read_text("utf-8").split()
    assert asked == ["is-active", "--quiet", NODE_UNIT, ROUTER_UNIT]


def test_process_that_does_not_answer_is_not_ready(tmp_path: Path) -> None:
    """It starts, or hangs."""
    report = node_report(write(tmp_path, url=f"http://127.0.0.1:{unused_port()}"))
    assert (report.generation, report.is_ready) == ("ab12", False)
    assert report.running_requests is None


async def test_sick_engine_is_not_ready(tmp_path: Path) -> None:
    """It answers, but not with 200."""
    write_tokenizer(tmp_path)
    async with running_fleet(tmp_path) as fleet:
        fleet.decodes[0].faults.is_sick = True
        report = await asyncio.to_thread(node_report, write(tmp_path, url=url_of(fleet.decodes[0])))
    assert not report.is_ready


async def test_engine_without_the_metrics_is_no_idle_engine(tmp_path: Path) -> None:
    """Nothing told is not nothing running: it would be restarted under its requests."""

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/{any:.*}", healthy)
    async with listening(app) as port:
        path = write(tmp_path, url=f"http://127.0.0.1:{port}")
        with pytest.raises(StartFailed, match="does not tell what it does"):
            await asyncio.to_thread(node_report, path)


@pytest.mark.parametrize("value", ["1e+e", "NaN", "+Inf", "-", "1.2.3"])
async def test_metric_that_is_no_number_is_none(value: str, tmp_path: Path) -> None:
    """Told as missing, not as a traceback."""

    async def answer(_request: web.Request) -> web.Response:
        page = f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 0\n"
        return web.Response(text=page)

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    async with listening(app) as port:
        path = write(tmp_path, url=f"http://127.0.0.1:{port}")
        with pytest.raises(StartFailed, match="does not tell what it does"):
            await asyncio.to_thread(node_report, path)


@pytest.mark.parametrize("text", ["", "{}", '{"role": "decode"}', '{"format": 2}'])
def test_broken_status_is_told(text: str, tmp_path: Path) -> None:
    """A file of another form, or half of one."""
    path = tmp_path / "status.json"
    path.write_text(text, "utf-8")
    with pytest.raises(BadInput, match=r"status\.json"):
        node_report(path)


def test_command_prints_one_line_of_json() -> None:
    """As SSM runs it; on a machine without a status nothing runs."""
    done = subprocess.run(
        [sys.executable, "-m", "runtime.launch.node_report"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == json.loads(NodeReport().model_dump_json())
    assert len(done.stdout.splitlines()) == 1


def test_generation_of_a_router_follows_its_arguments() -> None:
    """As the start script computes it: `printf | sha256sum | cut -c1-12`."""
    text = "--deployment\ndemo"
    shell = subprocess.run(
        ["/bin/bash", "-c", 'printf "%s" "$1" | sha256sum | cut -c1-12', "bash", text],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout.strip() == arguments_generation(text) != arguments_generation(text + "x")
