"""The script of the first boot, as it is stored."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.contract.status import STATUS_FILE, NodeStatus, arguments_generation
from stacks.constructs.node_spec import ROUTER_PORT
from stacks.constructs.user_data import MOST_BYTES, render_user_data
from tests.infra.conftest import Changed
from tests.infra.synth import ROOT, Synth, text_of

Topology = Callable[[str], Synth]
ROLES = ("prefill", "decode", "router")


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


def _run(script: str, root: Path, wheel: str = "a wheel") -> subprocess.CompletedProcess[str]:
    """Play the script under a root folder, with stand-ins that write down their calls."""
    tools = root / "bin"
    tools.mkdir(parents=True)
    for name in ("systemctl", "aws"):
        text = f'#!/bin/bash\necho "{name} $*" >>"{root}/calls"\n'
        if name == "aws":
            text += f'[[ $2 == cp ]] && printf "%s" "{wheel}" >"${{@: -1}}"\nexit 0\n'
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    for environment in ("venv", "venv-engine"):
        python = root / "opt/turnback" / environment / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/bash\necho "{environment} $*" >>"{root}/calls"\n')
        python.chmod(0o755)
    (root / "etc/systemd/system").mkdir(parents=True)
    moved = re.sub(r"(?<![\w.])/(opt|etc)/", rf"{root}/\1/", script)
    return subprocess.run(
        ["/bin/bash", "-c", moved],
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_first_boot_of_a_node(pair: Synth, tmp_path: Path) -> None:
    """The checked wheel goes into both environments, then the image's unit starts."""
    done = _run(_script(pair, "prefill"), tmp_path)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text("utf-8").splitlines()
    assert [call.split(" ")[0] for call in calls] == ["aws", "venv", "venv-engine", "systemctl"]
    assert calls[-1].endswith("turnback-node.service")
    assert "--no-index --no-deps" in calls[2]
    environment = (tmp_path / "etc/turnback/node.env").read_text("utf-8")
    assert "TURNBACK_PARAMETER=/turnback/demo/prefill\n" in environment


def test_first_boot_of_a_router(pair: Synth, tmp_path: Path) -> None:
    """No engine's environment is touched, and the router's unit starts."""
    done = _run(_script(pair, "router"), tmp_path)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text("utf-8").splitlines()
    assert [call.split(" ")[0] for call in calls] == ["aws", "venv", "systemctl", "systemctl"]
    assert calls[-1].endswith("turnback-router.service")
    unit = (tmp_path / "etc/systemd/system/turnback-router.service").read_text("utf-8")
    assert "DynamicUser=yes" in unit


def test_router_tells_what_it_was_started_with(pair: Synth, tmp_path: Path) -> None:
    """Each start writes a status that a rollout compares with the parameter."""
    assert _run(_script(pair, "router"), tmp_path).returncode == 0
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


def test_another_wheel_is_not_installed(pair: Synth, tmp_path: Path) -> None:
    """The digest is checked before anything of it runs."""
    done = _run(_script(pair, "decode"), tmp_path, wheel="another wheel")
    assert done.returncode == 1
    assert "not the one that was deployed" in done.stderr
    assert "venv" not in (tmp_path / "calls").read_text("utf-8").replace("aws", "")
    assert ROOT not in tmp_path.parents
