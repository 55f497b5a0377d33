"""Processes start together, and nothing is left however it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.errors import EngineDied, StartFailed
from runtime.launch.command import Command
from runtime.launch.supervisor import Service, Supervisor
from runtime.local.checks import free_ports

STAND_IN = Path(__file__).with_name("stand_in.py")
Make = Callable[..., Service]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Builds a service whose process is the stand-in."""

    def build(name: str, *arguments: str, port: int | None = None) -> Service:
        port = port or free_ports(1)[0]
        argv = (sys.executable, str(STAND_IN), str(port), "--pids", str(tmp_path / f"{name}.pids"))
        url = f"http://127.0.0.1:{port}/health"
        return Service(name, Command((*argv, *arguments)), url, tmp_path / "logs" / f"{name}.log")

    return build


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def pids(tmp_path: Path, name: str) -> list[int]:
    return [int(pid) for pid in (tmp_path / f"{name}.pids").read_text("ascii").split()]


def gone_within(seconds: float, processes: list[int]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(map(alive, processes)):
            return True
        time.sleep(0.05)
    return False


async def test_services_become_ready_and_end_with_the_block(make: Make, tmp_path: Path) -> None:
    """Leaving the block ends the process and the child that it put into another session."""
    ready: list[str] = []
    async with Supervisor(on_ready=lambda name, _: ready.append(name)) as supervisor:
        await supervisor.start([make("a"), make("b")])
        running = pids(tmp_path, "a") + pids(tmp_path, "b")
        assert all(map(alive, running))
    assert sorted(ready) == ["a", "b"]
    assert gone_within(2.0, running)
    assert "stand-in has started" in (tmp_path / "logs" / "a.log").read_text("utf-8")


async def test_process_that_ignores_sigterm_is_killed(make: Make, tmp_path: Path) -> None:
    """A deaf engine is ended after the grace time."""
    async with Supervisor(grace_s=0.3) as supervisor:
        await supervisor.start([make("deaf", "--deaf")])
        running = pids(tmp_path, "deaf")
    assert gone_within(2.0, running)


async def test_death_at_start_names_code_and_log(make: Make, tmp_path: Path) -> None:
    """A process that ends before it is ready fails the start, with its last lines."""
    async with Supervisor() as supervisor:
        with pytest.raises(StartFailed, match="bad ended during its start") as failure:
            await supervisor.start(
                [make("good"), make("bad", "--never-ready", "--exit-after", "1")]
            )
    assert "exit code 7" in failure.value.got
    assert "stand-in has started" in failure.value.got
    assert "bad.log" in failure.value.fix
    assert gone_within(2.0, pids(tmp_path, "good"))


async def test_death_of_a_sibling_ends_a_later_start(make: Make, tmp_path: Path) -> None:
    """A service that dies while another one starts is told at once, not after the time limit."""
    async with Supervisor(ready_timeout_s=30.0, grace_s=0.2) as supervisor:
        await supervisor.start([make("first")])
        os.kill(pids(tmp_path, "first")[0], signal.SIGKILL)
        with pytest.raises(EngineDied, match="first ended while it served"):
            await supervisor.start([make("second", "--never-ready")])


async def test_no_answer_in_time_fails_the_start(make: Make) -> None:
    """A process that runs but never answers is not waited for without end."""
    async with Supervisor(ready_timeout_s=1.0, grace_s=0.2) as supervisor:
        with pytest.raises(StartFailed, match="slow did not become ready"):
            await supervisor.start([make("slow", "--never-ready")])


async def test_death_while_serving_cancels_the_work(make: Make, tmp_path: Path) -> None:
    """SIGKILL of one engine ends the work at once and the sibling with the block."""
    cancelled = asyncio.Event()

    async def work() -> None:
        os.kill(pids(tmp_path, "a")[0], signal.SIGKILL)
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async with Supervisor() as supervisor:
        await supervisor.start([make("a"), make("b")])
        running = pids(tmp_path, "a") + pids(tmp_path, "b")
        with pytest.raises(EngineDied, match="a ended while it served") as failure:
            await supervisor.run(work())
    assert "SIGKILL" in failure.value.got
    assert cancelled.is_set()
    assert gone_within(2.0, running)


async def test_killed_guard_leaves_nothing(make: Make, tmp_path: Path) -> None:
    """SIGKILL of the guard itself takes the engine along and is seen as a death."""
    async with Supervisor() as supervisor:
        await supervisor.start([make("a")])
        engine = pids(tmp_path, "a")[0]
        os.kill(supervisor.pids()["a"], signal.SIGKILL)
        with pytest.raises(EngineDied):
            await supervisor.run(asyncio.sleep(60))
        assert gone_within(2.0, [engine])
    os.kill(pids(tmp_path, "a")[1], signal.SIGKILL)  # in a session of its own: out of reach


async def test_work_that_ends_returns_its_result(make: Make) -> None:
    """With every service alive the work's own result comes back."""

    async def work() -> int:
        return 42

    async with Supervisor() as supervisor:
        await supervisor.start([make("a")])
        assert await supervisor.run(work()) == 42


_SUPERVISE = """
import asyncio, sys
from pathlib import Path
from runtime.launch.command import Command
from runtime.launch.supervisor import Service, Supervisor
async def main():
    argv = tuple(sys.argv[3:])
    async with Supervisor() as s:
        await s.start([Service("a", Command(argv), sys.argv[1], Path(sys.argv[2]))])
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_supervisor(signum: int, make: Make, tmp_path: Path) -> None:
    """kill -9 and Ctrl-C of the supervising process leave no engine behind."""
    service = make("a")
    argv = [sys.executable, "-c", _SUPERVISE, service.ready_url, str(service.log)]
    with subprocess.Popen(
        [*argv, *service.command.argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        running = pids(tmp_path, "a")
        assert all(map(alive, running))
        parent.send_signal(signum)
        parent.wait(timeout=20)
    assert gone_within(12.0, running)


async def test_one_service_ends_and_another_takes_its_place(make: Make, tmp_path: Path) -> None:
    """The others run on, and the ended one is not taken for one that died."""
    async with Supervisor() as supervisor:
        await supervisor.start([make("a"), make("b")])
        old, other = pids(tmp_path, "a"), pids(tmp_path, "b")
        await supervisor.end("a")
        assert gone_within(2.0, old)
        assert all(map(alive, other))
        await supervisor.start([make("a")])
        assert sorted(supervisor.pids()) == ["a", "b"]
        await supervisor.run(asyncio.sleep(0.1))


async def test_service_whose_end_was_cancelled_ends_with_the_block(
    make: Make, tmp_path: Path
) -> None:
    """Ctrl-C while a deaf engine is being ended: the block does not forget it."""
    async with Supervisor(grace_s=1.0) as supervisor:
        await supervisor.start([make("deaf", "--deaf")])
        running = pids(tmp_path, "deaf")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(supervisor.end("deaf"), 0.1)
        assert all(map(alive, running))
    assert not any(map(alive, running))


async def test_all_end_when_a_stop_was_cancelled_and_asked_for_again(
    make: Make, tmp_path: Path
) -> None:
    """A second Ctrl-C forgets nothing either."""
    async with Supervisor(grace_s=1.0) as supervisor:
        await supervisor.start([make("deaf", "--deaf")])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(supervisor.stop(), 0.1)
    assert not any(map(alive, pids(tmp_path, "deaf")))


async def test_an_ended_service_is_no_death_to_those_that_watch(make: Make) -> None:
    """Work and the start of another go on over it; a real death meanwhile is still told."""

    async def work() -> int:
        await supervisor.end("a")
        assert [*supervisor.pids()] == ["b"]
        await supervisor.start([make("a")])
        return 42

    async def broken() -> None:
        await supervisor.end("a")
        os.kill(supervisor.pids()["b"], signal.SIGKILL)
        await asyncio.sleep(60)

    async with Supervisor() as supervisor:
        await supervisor.start([make("a"), make("b")])
        assert await supervisor.run(work()) == 42
        with pytest.raises(EngineDied, match="b ended while it served"):
            await supervisor.run(broken())


async def test_ended_service_is_no_death_to_another_start(make: Make) -> None:
    """The slow one is what fails, not the one that was ended while it started."""
    async with Supervisor(ready_timeout_s=1.5, grace_s=0.2) as supervisor:
        await supervisor.start([make("a", "--deaf")])
        slow = asyncio.ensure_future(supervisor.start([make("slow", "--never-ready")]))
        await supervisor.end("a")
        with pytest.raises(StartFailed, match="slow did not become ready"):
            await slow
