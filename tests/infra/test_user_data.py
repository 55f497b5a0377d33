"""The script of the first boot, as it is stored."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.contract.node_metrics import LOG_SOURCES, log_group
from runtime.contract.status import (
    KIT_PYTHON,
    KIT_STAMP,
    NODE_UNIT,
    ROUTER_UNIT,
    STATUS_FILE,
    BootReport,
    NodeStatus,
    arguments_generation,
)
from runtime.launch.boot.engine import LOGS
from stacks.constructs.node_spec import ROUTER_PORT
from stacks.constructs.user_data import MOST_BYTES, render_user_data
from tests.infra.conftest import Changed
from tests.infra.synth import Synth, text_of

Topology = Callable[[str], Synth]
ROLES = ("prefill", "decode", "router")
WHEEL_SHA256 = hashlib.sha256(b"a wheel").hexdigest()
"""Of the stand-in for a wheel that `tests.infra.synth` deploys."""


def _script(made: Synth, role: str) -> str:
    return text_of(made.launch_template(role)["UserData"])


@pytest.mark.parametrize("role", ROLES)
def test_script_is_valid_shell_as_stored(role: str, topology: Topology, tmp_path: Path) -> None:
    """shellcheck finds nothing, with the variables that the template puts before it."""
    path = tmp_path / "user_data.sh"
    path.write_text(_script(topology("two-routers"), role), "utf-8")
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([str(shellcheck), str(path)], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("role", ROLES)
def test_script_is_small(role: str, topology: Topology) -> None:
    """EC2 refuses more than 16 KiB."""
    assert len(_script(topology("two-routers"), role).encode()) < MOST_BYTES < 16_384


@pytest.mark.parametrize("role", ROLES)
def test_script_gets_every_variable_that_it_reads(role: str, pair: Synth) -> None:
    """An unset one would end the first boot of a paid instance."""
    script = _script(pair, role)
    given = set(re.findall(r"^(TURNBACK_\w+)='", script, re.MULTILINE))
    made = set(re.findall(r"^\s*(TURNBACK_\w+)=\$\(", script, re.MULTILINE))
    assert set(re.findall(r"\$(TURNBACK_\w+)", script)) <= given | made
    assert f"TURNBACK_ROLE='{role}'" in script


def test_script_holds_no_secret(topology: Topology) -> None:
    """Whoever may describe instances reads it: names of secrets only."""
    for role in ROLES:
        text = json.dumps(topology("two-routers").launch_template(role)["UserData"])
        assert "resolve:secretsmanager" not in text


def test_proxy_and_index_reach_the_script(changed: Changed) -> None:
    """Both only when given."""
    made = changed(
        {
            "downloads.proxy_url": "http://proxy.example:3128",
            "downloads.index_url": "https://index.example/simple",
        }
    )
    script = _script(made, "decode")
    assert "TURNBACK_PROXY_URL='http://proxy.example:3128'" in script
    assert "TURNBACK_INDEX_URL='https://index.example/simple'" in script


def test_quotes_do_not_reach_the_shell() -> None:
    """A value cannot end its own quotes."""
    with pytest.raises(ValueError, match="no quote"):
        render_user_data({"A": "x'; reboot; '"})


SHIPPING = [
    "systemctl daemon-reload",
    "systemctl start --no-block turnback-journal.service",
]
"""Calls before the kit is there, so that its failures are shipped too."""
MEASURING = [
    "systemctl daemon-reload",
    "systemctl start --no-block turnback-metrics.service",
]

PIP = """#!/bin/bash
echo "{name} $*" >>"{root}/calls"
if [[ -e {root}/broken-{name} && $* == *install* ]]; then exit 1; fi
if [[ -e {root}/lacks-{name} && $* == *--no-index* && $* != *--no-deps* ]]; then exit 1; fi
"""


class Instance:
    """A folder that stands for `/`, with stand-ins that write down their calls."""

    def __init__(self, script: str, root: Path) -> None:
        self.root, self.wheel = root, "a wheel"
        tools = root / "bin"
        tools.mkdir(parents=True)
        aws = f'cat "{root}/wheel" >"${{@: -1}}" || exit 1\n'
        for name, more in (("systemctl", ""), ("aws", aws)):
            text = f'#!/bin/bash\necho "{name} $*" >>"{root}/calls"\n{more}exit 0\n'
            (tools / name).write_text(text, "utf-8")
            (tools / name).chmod(0o755)
        for name in ("venv", "venv-engine"):
            python = root / "opt/turnback" / name / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.write_text(PIP.format(name=name, root=root), "utf-8")
            python.chmod(0o755)
        (root / "etc/systemd/system").mkdir(parents=True)
        (root / "wheel").write_text(self.wheel, "utf-8")
        moved = re.sub(r"(?<![\w.])/(opt|etc|var)/", rf"{root}/\1/", script)
        (root / "script").write_text(moved, "utf-8")

    def _bash(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", *argv],
            env={"PATH": f"{self.root}/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def boot(self) -> subprocess.CompletedProcess[str]:
        """What cloud-init runs, once in an instance's life."""
        return self._bash(f"{self.root}/script")

    def kit(self) -> subprocess.CompletedProcess[str]:
        """What turnback-kit.service runs, at each start and after each failure."""
        return self._bash(f"{self.root}/opt/turnback/first-boot", "kit")

    def calls(self) -> list[str]:
        """Since the last look."""
        path = self.root / "calls"
        found = path.read_text("utf-8").splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    @property
    def stamp(self) -> Path:
        """Of a kit that is whole."""
        return self.root / "opt/turnback/kit.sha256"

    def report(self) -> BootReport:
        """What doctor reads."""
        return BootReport.model_validate_json(
            (self.root / "var/lib/turnback/boot.json").read_text()
        )


def _first(call: str) -> str:
    return call.split(" ")[0]


def test_first_boot_leaves_a_unit_that_can_be_tried_again(pair: Synth, tmp_path: Path) -> None:
    """It installs nothing itself, and no unit of the image starts before the kit is whole."""
    machine = Instance(_script(pair, "prefill"), tmp_path)
    done = machine.boot()
    assert done.returncode == 0, done.stderr
    assert machine.calls()[-1] == "systemctl start --no-block turnback-kit.service"
    environment = (tmp_path / "etc/turnback/node.env").read_text("utf-8")
    assert "TURNBACK_PARAMETER=/turnback/demo/prefill\n" in environment
    assert f"TURNBACK_WHEEL_SHA256={WHEEL_SHA256}\n" in environment
    units = tmp_path / "etc/systemd/system"
    assert "Restart=on-failure" in (units / "turnback-kit.service").read_text("utf-8")
    held = (units / "turnback-node.service.d/kit.conf").read_text("utf-8")
    assert held == f"[Unit]\nConditionPathExists={machine.stamp}\n"
    assert Path("/opt/turnback/kit.sha256") == KIT_STAMP


def test_kit_of_a_node(pair: Synth, tmp_path: Path) -> None:
    """The checked wheel goes into both environments, then the image's unit starts."""
    machine = Instance(_script(pair, "prefill"), tmp_path)
    machine.boot()
    machine.calls()
    done = machine.kit()
    assert done.returncode == 0, done.stderr
    calls = machine.calls()
    assert calls[:2] == SHIPPING
    assert [_first(call) for call in calls[2:6]] == ["aws", "venv", "venv", "venv-engine"]
    assert "--no-index --no-deps --force-reinstall" in calls[3]
    assert "--no-index --no-deps --force-reinstall" in calls[5]
    assert "--no-deps" not in calls[4]
    assert calls[6:] == [*MEASURING, "systemctl start --no-block turnback-node.service"]
    assert machine.stamp.read_text("utf-8") == f"{WHEEL_SHA256}\n"


def test_packages_that_the_image_lacks_come_by_hash(changed: Changed, tmp_path: Path) -> None:
    """From the index alone, and only those of the lock that lies in the checked wheel."""
    made = changed({"downloads.index_url": "https://index.example/simple"})
    machine = Instance(_script(made, "decode"), tmp_path)
    (tmp_path / "lacks-venv").touch()
    machine.boot()
    machine.calls()
    done = machine.kit()
    assert done.returncode == 0, done.stderr
    calls = machine.calls()
    assert calls[:2] == SHIPPING
    del calls[:2]
    assert [_first(call) for call in calls][:5] == ["aws", "venv", "venv", "venv", "venv"]
    assert re.fullmatch(r"venv -m zipfile -e \S+\.whl \S+/wheel", calls[3]), calls[3]
    assert "--index-url https://index.example/simple" in calls[4]
    assert "--only-binary :all: --no-deps --require-hashes -r " in calls[4]
    assert calls[4].endswith("/wheel/runtime/node.lock")


def test_image_that_lacks_packages_without_an_index(pair: Synth, tmp_path: Path) -> None:
    """Told; nothing is asked for on the internet."""
    machine = Instance(_script(pair, "decode"), tmp_path)
    (tmp_path / "lacks-venv").touch()
    machine.boot()
    machine.calls()
    assert machine.kit().returncode == 3
    assert "the image lacks packages" in machine.report().what
    assert not any("--index-url" in call for call in machine.calls())


def test_kit_that_is_whole_is_not_installed_again(pair: Synth, tmp_path: Path) -> None:
    """A reboot asks neither S3 nor pip."""
    machine = Instance(_script(pair, "decode"), tmp_path)
    machine.boot()
    machine.kit()
    machine.calls()
    assert machine.kit().returncode == 0
    assert machine.calls() == [
        *(*SHIPPING, *MEASURING),
        "systemctl start --no-block turnback-node.service",
    ]


def test_kit_of_a_router(pair: Synth, tmp_path: Path) -> None:
    """No engine's environment is touched, and the router's unit starts."""
    machine = Instance(_script(pair, "router"), tmp_path)
    machine.boot()
    machine.calls()
    assert machine.kit().returncode == 0
    calls = machine.calls()
    assert [_first(call) for call in calls[2:5]] == ["aws", "venv", "venv"]
    assert calls[5:7] == MEASURING
    assert calls[-1] == "systemctl start --no-block turnback-router.service"
    unit = (tmp_path / "etc/systemd/system/turnback-router.service").read_text("utf-8")
    assert "DynamicUser=yes" in unit


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("wheel", "not the one that was deployed"),
        ("route", "cannot be fetched"),
        ("broken-venv", "the kit cannot be installed"),
        ("broken-venv-engine", "beside the engine"),
        ("no venv", "no environment for the kit"),
    ],
)
def test_kit_that_fails_is_told_not_used_and_tried_again(
    harm: str, said: str, pair: Synth, tmp_path: Path
) -> None:
    """One line, boot.json, no stamp, no unit started; mended, the next try is whole."""
    machine = Instance(_script(pair, "decode"), tmp_path)
    machine.boot()
    machine.kit()  # an older kit is whole
    (tmp_path / "opt/turnback/kit.sha256").write_text("cd" * 32, "utf-8")
    python = tmp_path / "opt/turnback/venv/bin/python"
    if harm == "wheel":
        (tmp_path / "wheel").write_text("another wheel", "utf-8")
    elif harm == "route":
        (tmp_path / "wheel").unlink()
    elif harm == "no venv":
        python.rename(tmp_path / "moved")
    else:
        (tmp_path / harm).touch()
    machine.calls()
    done = machine.kit()
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("turnback: kit failed: ")
    assert said in done.stderr
    report = machine.report()
    assert (report.state, report.step) == ("failed", "kit")
    assert said in report.what
    started = [call for call in machine.calls() if call.startswith("systemctl start")]
    assert started == SHIPPING[1:]
    if harm != "no venv":
        assert not machine.stamp.exists()
    else:
        (tmp_path / "moved").rename(python)
    (tmp_path / "wheel").write_text("a wheel", "utf-8")
    for name in ("broken-venv", "broken-venv-engine"):
        (tmp_path / name).unlink(missing_ok=True)
    assert machine.kit().returncode == 0
    assert machine.stamp.read_text("utf-8") == f"{WHEEL_SHA256}\n"
    assert "--force-reinstall" in "".join(machine.calls())


def test_router_tells_what_it_was_started_with(pair: Synth, tmp_path: Path) -> None:
    """Each start writes a status that a rollout compares with the parameter."""
    machine = Instance(_script(pair, "router"), tmp_path)
    machine.boot()
    assert machine.kit().returncode == 0
    arguments = text_of(pair.only("router", "SSM::Parameter")["Value"])
    (tmp_path / "arguments").write_text(arguments + "\n", "utf-8")
    aws, turnback = (tmp_path / path for path in ("bin/aws", "opt/turnback/venv/bin/turnback"))
    aws.write_text(f'#!/bin/bash\ncat "{tmp_path}/arguments"\n')
    turnback.write_text(f'#!/bin/bash\nprintf "%s\n" "$@" >"{tmp_path}/started"\n')
    turnback.chmod(0o755)
    done = subprocess.run(
        [str(tmp_path / "opt/turnback/start-router")],
        env={
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "RUNTIME_DIRECTORY": str(tmp_path),
            "TURNBACK_PARAMETER": "/turnback/demo/router",
            "TURNBACK_STORE_SECRET": "",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    status = NodeStatus.model_validate_json((tmp_path / "status.json").read_bytes())
    assert status.role == "router"
    assert status.generation == arguments_generation(arguments)
    assert status.url == f"http://127.0.0.1:{ROUTER_PORT}"
    assert (tmp_path / "started").read_text("utf-8") == f"router\n{arguments}\n"
    unit = (tmp_path / "etc/systemd/system/turnback-router.service").read_text("utf-8")
    assert f"RuntimeDirectory={STATUS_FILE.parent.name}\n" in unit


def _agent(machine: Instance) -> Path:
    """The CloudWatch agent's program, which writes down its calls."""
    at = machine.root / "opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
    at.parent.mkdir(parents=True)
    at.write_text(f'#!/bin/bash\necho "agent $*" >>"{machine.root}/calls"\n', "utf-8")
    at.chmod(0o755)
    return at


@pytest.mark.parametrize("role", ["prefill", "decode", "router"])
def test_logs_go_to_the_group_that_the_role_may_write(
    role: str, pair: Synth, tmp_path: Path
) -> None:
    """The agent gets one more configuration: files of a role into the group of its stack."""
    machine = Instance(_script(pair, role), tmp_path)
    _agent(machine)
    machine.boot()
    assert machine.kit().returncode == 0
    config = tmp_path / "opt/turnback/etc/cloudwatch-logs.json"
    asked = f"agent -a append-config -m ec2 -s -c file:{config}"
    assert asked in machine.calls()
    files = json.loads(config.read_text("utf-8"))["logs"]["logs_collected"]["files"]
    assert {each["log_group_name"] for each in files["collect_list"]} == {log_group("demo", role)}
    assert {each["file_path"].removeprefix(str(tmp_path)) for each in files["collect_list"]} == {
        f"{LOGS}/journal.log",
        f"{LOGS}/engine-*.log",
    }
    streams = {each["log_stream_name"] for each in files["collect_list"]}
    assert streams == {f"{{instance_id}}/{source}" for source in LOG_SOURCES}
    stack = "router" if role == "router" else "fleet"
    groups = pair.resources(stack, "Logs::LogGroup").values()
    names = {each["Properties"]["LogGroupName"]: each for each in groups}
    assert names[log_group("demo", role)]["Properties"]["RetentionInDays"] == 30


def test_agent_that_fails_keeps_no_node_from_serving(pair: Synth, tmp_path: Path) -> None:
    """Logs are not worth an engine."""
    machine = Instance(_script(pair, "decode"), tmp_path)
    _agent(machine).write_text("#!/bin/bash\nexit 1\n", "utf-8")
    machine.boot()
    done = machine.kit()
    assert done.returncode == 0
    assert "logs do not go to CloudWatch" in done.stderr
    assert machine.calls()[-1] == "systemctl start --no-block turnback-node.service"


def test_journal_of_all_units_is_shipped(pair: Synth, tmp_path: Path) -> None:
    """Those that run the kit, the engine, the router and the metrics."""
    machine = Instance(_script(pair, "router"), tmp_path)
    machine.boot()
    machine.kit()
    units = tmp_path / "etc/systemd/system"
    unit = (units / "turnback-journal.service").read_text("utf-8")
    for name in (NODE_UNIT, ROUTER_UNIT, "turnback-kit.service", "turnback-metrics.service"):
        assert f"--unit={name.removesuffix('.service')}" in unit
    metrics = (units / "turnback-metrics.service").read_text("utf-8")
    assert f"{KIT_PYTHON.removesuffix('/python')}/turnback node-metrics\n" in metrics.replace(
        str(tmp_path), ""
    )
