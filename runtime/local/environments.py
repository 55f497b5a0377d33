"""`make setup`: the kit's and the engine's virtual environments from their lock files.

The rehearsal deploys with the CDK CLI: an npm package, run by the Node that the kit's
environment holds.

The tests of the shared store need a Redis or Valkey server: installed here where that is
possible, and never started by the package. Those of the report's page need a Chromium.

Standard library only: it runs before anything is installed.

    python3 -m runtime.local.environments
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runtime.errors import BadInput, StartFailed, TurnbackError

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "locks"
KIT = ROOT / ".venv"
ENGINE = ROOT / ".venv-engine"
CDK_CLI = ROOT / ".cdk-cli"
CDK_CLI_LOCKS = ("package.json", "package-lock.json")
TORCH = "torch==2.13.0+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PYTHONS = ((3, 11), (3, 13))
STORE_SERVERS = ("redis-server", "valkey-server")
STORE_PACKAGE = "redis-server"
ROOT_PACKAGE = "debootstrap"
"""What tests/ami makes a root of."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_PACKAGE = "chromium"
"""What tests/bench/render looks at the report with."""
POLICY = Path("/usr/sbin/policy-rc.d")
_STAMP = ".turnback-setup"

Run = Callable[[Sequence[str]], int]


def run_command(argv: Sequence[str]) -> int:
    """Run a command with its output on the terminal; returns its exit code."""
    return subprocess.run(argv, check=False).returncode


def torch_install(python: Path, lock: Path, run: Run) -> list[str]:
    """Choose where torch's CPU build comes from, and return the install command.

    Args:
        python: interpreter of the engine environment.
        lock: requirement of torch alone, with the hash of the wheel that was tried.
        run: runs a command and returns its exit code.

    Returns:
        pip's plain command where pip already finds the build (a find-links folder or an
        index of CPU wheels), else the same with PyTorch's CPU index as its only index.
    """
    # pip checks hashes when the lock has them; the lock's are those of Python 3.11's wheel.
    wanted = ["-r", str(lock)] if _is_311(python, run) else [TORCH]
    plain = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *wanted]
    found = run([*plain, "--dry-run"]) == 0
    return plain if found else [*plain, "--index-url", TORCH_CPU_INDEX]


def _is_311(python: Path, run: Run) -> bool:
    ask = "import sys; sys.exit(sys.version_info[:2] != (3, 11))"
    return run([str(python), "-c", ask]) == 0


def stamp_text(inputs: Sequence[Path], version: str = sys.version) -> str:
    """Digest of everything that an environment is made from."""
    digest = hashlib.sha256(f"{version} {ROOT}".encode())  # environments cannot be moved
    for path in inputs:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check_python(version: tuple[int, int]) -> None:
    """Raise BadInput for an interpreter that the locks were not made for."""
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        raise BadInput(
            "this Python cannot run the kit",
            got=".".join(map(str, version)),
            allowed="3.11, 3.12 or 3.13",
            fix="make setup PYTHON=python3.11",
        )


def _need(code: int, what: str, fix: str) -> None:
    if code != 0:
        raise StartFailed(what, got=f"exit code {code}", allowed="exit code 0", fix=fix)


def _make(folder: Path, inputs: Sequence[Path], fill: Callable[[Path], None]) -> None:
    """Create one virtual environment, unless it is up to date."""

    def make() -> None:
        _ensure_venv_module()
        venv.create(folder, with_pip=True)
        fill(folder / "bin" / "python")

    make_once(folder, inputs, make)


def make_once(folder: Path, inputs: Sequence[Path], make: Callable[[], None]) -> None:
    """Make a folder anew, unless its stamp says that it is up to date.

    A half-made one is never stamped: the next run makes it anew.

    Args:
        folder: is removed before `make` is called.
        inputs: files that it is made from.
        make: makes it.
    """
    stamp = folder / _STAMP
    wanted = stamp_text(inputs)
    if stamp.is_file() and stamp.read_text("ascii") == wanted:
        print(f"{folder.name}: up to date")  # noqa: T201 - this is a command's output
        return
    began = time.perf_counter()
    print(f"{folder.name}: installing ...", flush=True)  # noqa: T201
    shutil.rmtree(folder, ignore_errors=True)
    make()
    stamp.write_text(wanted, "ascii")
    print(f"{folder.name}: ready after {time.perf_counter() - began:.0f} s")  # noqa: T201


def _ensure_venv_module() -> None:
    """Debian ships venv's pip in a package of its own."""
    try:
        import ensurepip  # noqa: F401 - only whether it is there
    except ImportError:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        line = f"apt-get install -y {package}"
        if os.geteuid() != 0 or run_command(line.split()) != 0:
            raise BadInput(
                "this Python has no ensurepip",
                got=sys.executable,
                allowed=f"a Python with the package {package}",
                fix=f"sudo {line}",
            ) from None


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _need(
        run_command([*command, *arguments]),
        f"pip install {' '.join(arguments)} failed",
        "read pip's message above; it names the package and the index it asked",
    )


def _kit_itself(python: Path) -> None:
    # setuptools comes from the lock, so that no build dependency is fetched unpinned.
    _pip(python, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def _fill_kit(python: Path) -> None:
    _pip(python, "--require-hashes", "-r", str(LOCKS / "kit.lock"))
    _kit_itself(python)


def _fill_engine(python: Path) -> None:
    _need(
        run_command(torch_install(python, LOCKS / "engine-torch.lock", run_command)),
        f"{TORCH} could not be installed",
        f"give pip a folder or index that has it, or reach {TORCH_CPU_INDEX}",
    )
    # --no-deps: the lock is a lean set; what it leaves out is named in docs/limits.md.
    _pip(python, "--no-deps", "--require-hashes", "-r", str(LOCKS / "engine.lock"))
    _kit_itself(python)


def fill_cdk_cli(folder: Path, kit: Path, run: Run) -> None:
    """Install the CDK CLI by its lock: exact versions, each with its digest.

    Args:
        folder: becomes a folder with `node_modules`.
        kit: environment with Node and npm.
        run: runs a command and returns its exit code.

    Raises:
        StartFailed: npm failed.
    """
    folder.mkdir(parents=True)
    for name in CDK_CLI_LOCKS:
        shutil.copy(LOCKS / name, folder / name)
    npm = [str(kit / "bin" / "npm"), "ci", "--prefix", str(folder), "--ignore-scripts"]
    _need(
        run([*npm, "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]),
        "npm ci of the CDK CLI failed",
        "read npm's message above; it names the package and the registry it asked",
    )


def store_install(is_on_path: Callable[[str], bool], *, is_root: bool, run: Run) -> str | None:
    """Install the server that tests of shared stores start, unless there is one.

    Args:
        is_on_path: whether there is a program of that name.
        is_root: whether this process may install packages.
        run: runs a command and returns its exit code.

    Returns:
        None when there is one by now; else the line that would install it.
    """
    if any(map(is_on_path, STORE_SERVERS)):
        return None
    line = package_install(STORE_PACKAGE, STORE_SERVERS, is_on_path, is_root=is_root, run=run)
    if is_root and is_on_path("apt-get") and is_on_path("systemctl"):
        run(["systemctl", "disable", "--quiet", STORE_PACKAGE])  # nor at the next boot
    return line


def package_install(
    package: str,
    programs: Sequence[str],
    is_on_path: Callable[[str], bool],
    *,
    is_root: bool,
    run: Run,
) -> str | None:
    """Install a Debian package, unless one of its programs is there; else as `store_install`."""
    if any(map(is_on_path, programs)):
        return None
    install = "env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends"
    if is_root and is_on_path("apt-get"):
        command = [*install.split(), package]
        if run(command) != 0:  # package lists are old, or have never been fetched
            run(["apt-get", "update", "-qq"])
            run(command)
    found = any(map(is_on_path, programs))
    return None if found else f"sudo apt-get install -y {package}"


@contextmanager
def services_stay_off(policy: Path = POLICY) -> Iterator[None]:
    """Keep packages from starting their services meanwhile.

    Source:
        Debian's maintainer scripts ask /usr/sbin/policy-rc.d; exit code 101 forbids
        (invoke-rc.d(8), deb-systemd-invoke(1p)).
    """
    if policy.exists() or not os.access(policy.parent, os.W_OK):
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n", "ascii")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def _ensure_system_tools() -> None:
    def is_on_path(program: str) -> bool:
        return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is not None

    is_root = os.geteuid() == 0
    with services_stay_off():
        line = store_install(is_on_path, is_root=is_root, run=run_command)
        if line is not None:
            print(f"tests of the shared store need a server: {line}")  # noqa: T201
        for package, programs, tests in (
            (ROOT_PACKAGE, [ROOT_PACKAGE], "the image's steps"),
            (BROWSER_PACKAGE, BROWSERS, "the report's page"),
        ):
            line = package_install(package, programs, is_on_path, is_root=is_root, run=run_command)
            if line is not None:
                print(f"tests of {tests} need {package}: {line}")  # noqa: T201


def main() -> int:
    """Make the environments; returns the exit code."""
    try:
        check_python((sys.version_info.major, sys.version_info.minor))
        both = [ROOT / "pyproject.toml", Path(__file__)]
        kit_inputs = [LOCKS / "kit.lock", *both]
        engine_inputs = [LOCKS / "engine.lock", LOCKS / "engine-torch.lock", *both]
        _make(KIT, kit_inputs, _fill_kit)
        _make(ENGINE, engine_inputs, _fill_engine)
        cli_inputs = [*(LOCKS / name for name in CDK_CLI_LOCKS), Path(__file__)]
        make_once(CDK_CLI, cli_inputs, lambda: fill_cdk_cli(CDK_CLI, KIT, run_command))
        _ensure_system_tools()
    except TurnbackError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
