"""`turnback serve` as a process: real files, a real account on loopback, a stand-in engine."""

import contextlib
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.backends import get_backend
from moto.server import ThreadedMotoServer

from runtime.aws.clients import client
from runtime.aws.models.stage import stage_model
from runtime.contract.model import MODELS, model_prefix
from runtime.contract.node import NodeSpec
from runtime.contract.status import KIT_STAMP
from runtime.launch.machine import Machine
from runtime.local.checks import free_ports
from runtime.local.rehearsal import account
from runtime.local.rehearsal.fleet import OWN_PART_S
from tests.aws.models.bucket import BUCKET, make_model, same_files
from tests.launch.boot.node import KIT, PARAMETER, STAND_IN, boot_file, spec, status_file
from tests.launch.nodes import good_node

TURNBACK = Path(sys.executable).parent / "turnback"
Finished = subprocess.CompletedProcess[str]


def put(name: str, text: str) -> None:
    """Write a parameter."""
    client("ssm").put_parameter(Name=name, Value=text, Type="String", Overwrite=True)


class Rig:
    """A deployment of one node in an emulated account."""

    def __init__(self, folder: Path) -> None:
        raw = spec(*free_ports(1)).model_dump(mode="json", exclude_none=True)
        self.spec = NodeSpec.model_validate({**raw, "host": "127.0.0.1"})
        self.node = good_node(folder / "root")
        self.node.write(str(KIT_STAMP), KIT)
        self.machine = Machine(folder / "root")
        self.source = make_model(folder / "model")
        self.name = self.spec.serving.model.relative_to(MODELS).as_posix()
        self.python = folder / "python"
        self.engine("")
        where = {"LocationConstraint": account.REGION}
        client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=where)
        stage_model(client("s3"), BUCKET, self.name, self.source, lambda _line: None)
        put(PARAMETER, self.spec.model_dump_json(exclude_none=True))
        put("/turnback/demo/model-bucket", BUCKET)

    def engine(self, options: str) -> None:
        """What stands in the place of the engine's interpreter."""
        line = shlex.join([sys.executable, str(STAND_IN), str(self.spec.serving.port)])
        self.python.write_text(f"#!/bin/sh\nexec {line} {options}\n", "utf-8")
        self.python.chmod(0o755)

    @property
    def argv(self) -> list[str]:
        """Of the unit, but for the folder."""
        return [
            *(str(TURNBACK), "serve", "--root", str(self.machine.root)),
            *("--engine-python", str(self.python)),
        ]

    @property
    def env(self) -> dict[str, str]:
        """As node.env gives it."""
        return {
            **os.environ,
            "PATH": f"{self.node.root / 'bin'}:{os.environ['PATH']}",
            "TURNBACK_DEPLOYMENT": "demo",
            "TURNBACK_PARAMETER": PARAMETER,
            "TURNBACK_WHEEL_SHA256": KIT,
        }

    def run(self, env: dict[str, str] | None = None, **rest: Any) -> Finished:
        """To its end, which is a failure."""
        return subprocess.run(
            self.argv,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            **rest,
        )

    @contextlib.contextmanager
    def running(self, env: dict[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
        """Until it serves, and on."""
        with subprocess.Popen(
            self.argv, env={**self.env, **(env or {})}, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                until(lambda: self.is_serving() or process.poll() is not None)
                yield process
            finally:
                process.terminate()

    def is_serving(self) -> bool:
        """As boot.json says."""
        try:
            return boot_file(self.machine).state == "serving"
        except FileNotFoundError:
            return False

    def failed_at(self, step: str, done: Finished, code: int) -> str:
        """Check that it failed there, in one line and a file; returns the line."""
        report, last = boot_file(self.machine), done.stderr.splitlines()[-1]
        assert done.returncode == code, done.stderr
        assert (report.state, report.step) == ("failed", step)
        assert last.startswith(f"turnback: {step} failed: {report.what}; got: ")
        assert "Traceback" not in done.stderr
        assert not status_file(self.machine).exists()
        return last


def until(true: Callable[[], object]) -> None:
    """Poll."""
    end_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end_s, "not in time"
        time.sleep(0.05)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """With an account that other processes reach."""
    (port,) = free_ports(1)
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    with account.only_this_account(port):
        boto3.setup_default_session()
        yield Rig(tmp_path)
    server.stop()
    for each in ("ssm", "s3"):  # they are this process's, not the server's
        get_backend(each).reset()


def test_node_boots_serves_and_ends_in_order(rig: Rig, tmp_path: Path) -> None:
    """systemd is told READY and STOPPING; SIGTERM is exit code 0 and leaves no process.

    Boot's own part is short: what else it waited for is not of its making.
    """
    address, pids = tmp_path / "notify", tmp_path / "pids"
    rig.engine(f"--pids {pids}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(10)
        with rig.running({"NOTIFY_SOCKET": str(address)}) as process:
            told = ""
            while "READY=1" not in told:
                told = systemd.recv(4096).decode()
            assert same_files(rig.source, rig.machine.at(rig.spec.serving.model))
            assert status_file(rig.machine).exists()
            process.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in told:
                told = systemd.recv(4096).decode()
            assert process.wait(20) == 0
            assert process.stderr is not None
            said = process.stderr.read()
            assert "checks of the doctor, none fails" in said
            own = re.search(r"own part took ([\d.]+) s", said)
            assert own is not None
            assert float(own[1]) < OWN_PART_S
    for pid in pids.read_text("ascii").split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert not status_file(rig.machine).exists()
    assert boot_file(rig.machine).state == "draining"


def test_restart_needs_no_bucket(rig: Rig) -> None:
    """A model that is whole is not asked for: an outage of S3 keeps no node from starting."""
    with rig.running() as process:
        assert rig.is_serving()
        process.terminate()
        process.wait(20)
    (closed,) = free_ports(1)
    with rig.running({"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{closed}"}):
        assert rig.is_serving()


def test_second_serve_takes_nothing_from_the_first(rig: Rig) -> None:
    """One by hand beside the unit: refused, and the node's files stay as they are."""
    with rig.running() as process:
        before = boot_file(rig.machine)
        second = rig.run()
        assert (second.returncode, process.poll()) == (2, None)
        assert "another turnback serve runs" in second.stderr
        assert boot_file(rig.machine) == before
        assert status_file(rig.machine).exists()
        process.terminate()
        assert process.wait(20) == 0
    with rig.running():
        assert rig.is_serving()


def test_missing_parameter(rig: Rig) -> None:
    """With its name."""
    client("ssm").delete_parameter(Name=PARAMETER)
    assert PARAMETER in rig.failed_at("spec", rig.run(), 2)


def test_unreadable_spec(rig: Rig) -> None:
    """Cut off in the middle."""
    put(PARAMETER, rig.spec.model_dump_json()[:200])
    rig.failed_at("spec", rig.run(), 2)


def test_newer_spec(rig: Rig) -> None:
    """Told as newer, not as broken."""
    put(PARAMETER, rig.spec.model_dump_json(exclude_none=True)[:-1] + ', "tomorrow": 1}')
    assert "newer than this node's kit" in rig.failed_at("spec", rig.run(), 2)


def test_half_a_kit(rig: Rig) -> None:
    """Of another wheel than user data names."""
    done = rig.run({"TURNBACK_WHEEL_SHA256": "cd" * 32})
    assert "turnback-kit" in rig.failed_at("kit", done, 3)


def test_node_that_doctor_fails(rig: Rig) -> None:
    """Nothing is fetched for it. Mended, the next start serves."""
    rig.node.packages(rdma_core="50.0")
    assert "got: rdma-core: rdma-core " in rig.failed_at("checks", rig.run(), 2)
    assert not (rig.machine.at(rig.spec.serving.model) / "config.json").exists()
    unchecked = {"TURNBACK_WITHOUT_CHECK": "rdma-core nvlink"}
    with rig.running(unchecked) as process:
        assert rig.is_serving()
        process.terminate()
        assert process.stderr is not None
        assert "; not asked: rdma-core, nvlink" in process.stderr.read()
    rig.node.packages()
    with rig.running():
        assert rig.is_serving()


def test_check_that_is_none(rig: Rig) -> None:
    """A typing error must not look as if something were left out."""
    done = rig.run({"TURNBACK_WITHOUT_CHECK": "rdmacore"})
    assert done.returncode == 2
    assert "rdmacore" in done.stderr
    assert "rdma-core" in done.stderr


def test_wrong_checksum_and_its_retry(rig: Rig) -> None:
    """Nothing starts from it; mended, the next start takes what is left."""
    key = f"{model_prefix(rig.name)}weights/part-0.safetensors"
    good = client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
    client("s3").put_object(Bucket=BUCKET, Key=key, Body=b"y" * len(good))
    assert "not the file that was staged" in rig.failed_at("model", rig.run(), 3)
    client("s3").put_object(Bucket=BUCKET, Key=key, Body=good)
    with rig.running():
        assert rig.is_serving()


def test_full_disk_and_its_retry(rig: Rig) -> None:
    """The kernel refuses to write on: a limit on a file's size stands for a full disk."""

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done = rig.run(preexec_fn=small)
    assert "the disk is full" in rig.failed_at("model", done, 3)
    assert not list(rig.machine.at(rig.spec.serving.model).rglob("*.safetensors"))
    with rig.running():
        assert rig.is_serving()


def test_no_route_to_s3(rig: Rig) -> None:
    """Nobody listens there."""
    (closed,) = free_ports(1)
    done = rig.run({"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{closed}"})
    assert "S3 does not answer" in rig.failed_at("model", done, 3)


def test_signal_is_heard_where_s3_is_silent(rig: Rig) -> None:
    """It takes the connection and says nothing: no answer is waited for, all tries long."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(rig.argv, env={**rig.env, "AWS_ENDPOINT_URL_S3": url}) as process:
            silent.settimeout(50)
            taken, _ = silent.accept()
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(20) == 0
            finally:
                process.kill()
                taken.close()
    report = boot_file(rig.machine)
    assert (report.state, report.step) == ("draining", "model")


def test_no_answer_for_the_parameter(rig: Rig) -> None:
    """Another exit code than of a parameter that is not there: systemd tries again."""
    (closed,) = free_ports(1)
    done = rig.run({"AWS_ENDPOINT_URL_SSM": f"http://127.0.0.1:{closed}"})
    assert "AWS does not answer" in rig.failed_at("spec", done, 3)


@pytest.mark.parametrize("env", [{"AWS_REGION": "us west"}, {"AWS_ENDPOINT_URL_SSM": "no address"}])
def test_settings_that_boto3_refuses(env: dict[str, str], rig: Rig) -> None:
    """Before it asks anybody: another start changes nothing."""
    said = rig.failed_at("spec", rig.run(env), 2)
    assert "the node's settings for AWS cannot be used" in said
    assert "/etc/turnback/node.env" in said


def test_stage_names_the_deployed_model(rig: Rig) -> None:
    """The command: bucket and model come from the deployment's parameters."""
    (rig.source / "extra.txt").write_text("more", "utf-8")
    argv = [str(TURNBACK), "model", "stage", "demo", "--from", str(rig.source)]

    def run(*more: str) -> Finished:
        return subprocess.run(
            [*argv, *more], env=rig.env, capture_output=True, text=True, check=False, timeout=60
        )

    refused = run()
    assert refused.returncode == 2
    assert f"another model is staged as {rig.name}" in refused.stderr
    done = run("--model", "org/other/1")
    assert (done.returncode, "org/other/1 is staged" in done.stderr) == (0, True)
    keys = [
        each["Key"]
        for each in client("s3").list_objects_v2(Bucket=BUCKET, Prefix="models/org/")["Contents"]
    ]
    assert "models/org/other/1/manifest.json" in keys
