"""`make setup`: where torch comes from, and what is made anew."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from runtime.errors import BadInput, StartFailed
from runtime.local.environments import (
    BROWSER_PACKAGE,
    BROWSERS,
    CDK_CLI_LOCKS,
    LOCKS,
    TORCH,
    TORCH_CPU_INDEX,
    _make,
    check_python,
    fill_cdk_cli,
    package_install,
    services_stay_off,
    stamp_text,
    store_install,
    torch_install,
)

PYTHON = Path("/engine/bin/python")


class Pip:
    """Stands for the commands: says whether pip finds torch, and which Python it is."""

    def __init__(self, *, finds_torch: bool, is_311: bool = True) -> None:
        self.finds_torch, self.is_311 = finds_torch, is_311

    def __call__(self, argv: Sequence[str]) -> int:
        good = self.finds_torch if "--dry-run" in argv else self.is_311
        return 0 if good else 1


def test_torch_comes_from_where_pip_finds_it(tmp_path: Path) -> None:
    """A find-links folder or an index of CPU wheels is used as pip is set up."""
    command = torch_install(PYTHON, tmp_path / "torch.lock", Pip(finds_torch=True))
    assert "--index-url" not in command
    assert command[-2:] == ["-r", str(tmp_path / "torch.lock")]


def test_torch_alone_comes_from_the_cpu_index(tmp_path: Path) -> None:
    """Elsewhere PyTorch's CPU index is asked, for torch alone and without dependencies."""
    command = torch_install(PYTHON, tmp_path / "torch.lock", Pip(finds_torch=False))
    assert command[-2:] == ["--index-url", TORCH_CPU_INDEX]
    assert "--no-deps" in command
    assert "--dry-run" not in command


def test_other_pythons_take_the_version_without_the_hash(tmp_path: Path) -> None:
    """The hash that is known is that of Python 3.11's wheel."""
    pip = Pip(finds_torch=True, is_311=False)
    assert torch_install(PYTHON, tmp_path / "torch.lock", pip)[-1] == TORCH


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_other_pythons_are_refused(version: tuple[int, int]) -> None:
    """The message says what to call instead."""
    with pytest.raises(BadInput, match="cannot run the kit") as refusal:
        check_python(version)
    assert "make setup PYTHON=" in refusal.value.fix


def test_supported_pythons_pass() -> None:
    """3.11 to 3.13."""
    for minor in (11, 12, 13):
        check_python((3, minor))


def test_second_run_does_nothing_and_a_changed_lock_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An environment is made once, and anew when what it is made from changes."""
    lock, made = tmp_path / "lock", tmp_path / "venv"
    lock.write_text("one", "utf-8")
    filled: list[Path] = []
    _make(made, [lock], filled.append)
    _make(made, [lock], filled.append)
    assert len(filled) == 1
    assert "up to date" in capsys.readouterr().out
    lock.write_text("two", "utf-8")
    _make(made, [lock], filled.append)
    assert len(filled) == 2


def test_failed_install_is_not_taken_for_a_made_one(tmp_path: Path) -> None:
    """Without the stamp the next run starts over."""
    lock, made = tmp_path / "lock", tmp_path / "venv"
    lock.write_text("one", "utf-8")

    def fail(_python: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _make(made, [lock], fail)
    filled: list[Path] = []
    _make(made, [lock], filled.append)
    assert len(filled) == 1


def test_stamp_covers_every_input_and_the_python(tmp_path: Path) -> None:
    """A change of any input, or of the interpreter, changes the stamp."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1", "utf-8")
    two.write_text("2", "utf-8")
    stamps = {stamp_text([one, two]), stamp_text([one]), stamp_text([one, two], "3.12")}
    assert len(stamps) == 3


@pytest.mark.parametrize("name", ["kit.lock", "engine.lock", "engine-torch.lock"])
def test_locks_pin_exactly_and_with_hashes(name: str) -> None:
    """Every requirement has one version and at least one hash."""
    text = (LOCKS / name).read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines
    for line in lines:
        assert "==" in line
        assert "--hash=sha256:" in line


def test_cdk_cli_comes_from_its_lock_by_the_kits_npm(tmp_path: Path) -> None:
    """The environment's npm installs what the lock says, and runs no package's script."""
    lines: list[list[str]] = []

    def run(argv: Sequence[str]) -> int:
        lines.append([*argv])
        return 0

    fill_cdk_cli(tmp_path / "cli", tmp_path / "kit", run)
    (line,) = lines
    assert line[:2] == [str(tmp_path / "kit" / "bin" / "npm"), "ci"]
    assert {"--prefix", str(tmp_path / "cli"), "--ignore-scripts"} <= {*line}
    for name in CDK_CLI_LOCKS:
        assert (tmp_path / "cli" / name).read_bytes() == (LOCKS / name).read_bytes()


def test_failed_npm_ends_the_setup(tmp_path: Path) -> None:
    """A CLI that is not there is no set-up machine."""
    with pytest.raises(StartFailed, match="npm ci"):
        fill_cdk_cli(tmp_path / "cli", tmp_path / "kit", lambda _argv: 1)


def test_npm_lock_pins_exactly_with_digests_and_names_no_registry() -> None:
    """One version and a digest for each package; where it comes from is npm's setting."""
    wanted, lock = (json.loads((LOCKS / name).read_text("utf-8")) for name in CDK_CLI_LOCKS)
    packages = {name: each for name, each in lock["packages"].items() if name}
    assert packages
    for name, each in packages.items():
        assert each["integrity"].startswith("sha512-"), name
        assert "resolved" not in each, name
    for name, version in wanted["dependencies"].items():
        assert packages[f"node_modules/{name}"]["version"] == version


class Machine:
    """Stands for a machine: what is on its PATH, and what its package manager can do."""

    def __init__(self, *programs: str, failures: int = 0) -> None:
        self.programs, self.failures = set(programs), failures
        self.lines: list[str] = []

    def has(self, program: str) -> bool:
        """Whether it is on PATH."""
        return program in self.programs

    def run(self, argv: Sequence[str]) -> int:
        """Run a command; the first installations fail."""
        self.lines.append(" ".join(argv))
        if "install" not in argv:
            return 0
        self.failures -= 1
        if self.failures >= 0:
            return 100
        self.programs.add(argv[-1])
        return 0


@pytest.mark.parametrize("server", ["redis-server", "valkey-server"])
def test_store_server_that_is_there_is_used(server: str) -> None:
    """Nothing is installed, whoever asks."""
    machine = Machine(server, "apt-get")
    assert store_install(machine.has, is_root=True, run=machine.run) is None
    assert machine.lines == []


def test_store_server_is_installed_for_root() -> None:
    """One quiet command that asks nothing; the service is not enabled."""
    machine = Machine("apt-get", "systemctl")
    assert store_install(machine.has, is_root=True, run=machine.run) is None
    assert machine.lines == [
        "env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "
        "redis-server",
        "systemctl disable --quiet redis-server",
    ]


def test_package_lists_are_fetched_when_the_package_is_not_found() -> None:
    """A fresh container has none; the installation is tried once more, and no more."""
    machine = Machine("apt-get", failures=1)
    assert store_install(machine.has, is_root=True, run=machine.run) is None
    assert machine.lines[1] == "apt-get update -qq"
    hopeless = Machine("apt-get", failures=9)
    line = store_install(hopeless.has, is_root=True, run=hopeless.run)
    assert line == "sudo apt-get install -y redis-server"
    assert len(hopeless.lines) == 3


@pytest.mark.parametrize(("programs", "is_root"), [(["apt-get"], False), ([], True)])
def test_line_is_told_where_nothing_may_be_installed(programs: list[str], is_root: bool) -> None:
    """Setup goes on: only the tests that need the server fail, and say so."""
    machine = Machine(*programs)
    line = store_install(machine.has, is_root=is_root, run=machine.run)
    assert line == "sudo apt-get install -y redis-server"
    assert machine.lines == []


@pytest.mark.parametrize("browser", BROWSERS)
def test_browser_that_is_there_is_used(browser: str) -> None:
    """Another name of Chromium, or Chrome, does as well."""
    machine = Machine(browser, "apt-get")
    told = package_install(BROWSER_PACKAGE, BROWSERS, machine.has, is_root=True, run=machine.run)
    assert told is None
    assert machine.lines == []


def test_browser_is_installed_for_root() -> None:
    """Else the line is told, and only the page's tests fail."""
    machine, other = Machine("apt-get"), Machine("apt-get")
    asked = (BROWSER_PACKAGE, BROWSERS)
    assert package_install(*asked, machine.has, is_root=True, run=machine.run) is None
    assert machine.lines[0].endswith("--no-install-recommends chromium")
    line = package_install(*asked, other.has, is_root=False, run=other.run)
    assert line == "sudo apt-get install -y chromium"


def test_services_stay_off_while_packages_are_installed(tmp_path: Path) -> None:
    """Debian's scripts are told no, and the machine is left as it was."""
    policy = tmp_path / "policy-rc.d"
    with services_stay_off(policy):
        assert subprocess.run([str(policy)], check=False).returncode == 101
    assert not policy.exists()
    policy.write_text("another's", "ascii")
    with services_stay_off(policy):
        assert policy.read_text("ascii") == "another's"
    assert policy.read_text("ascii") == "another's"
