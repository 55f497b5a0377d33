"""Every check, room by room, with the minutes each took.

.venv/bin/python -m tests.run_all [--fast]
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
KIT = ROOT / ".venv" / "bin"
ENGINE_PYTHON = ROOT / ".venv-engine" / "bin" / "python"
PYTEST = (str(KIT / "python"), "-m", "pytest", "-q")
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "ami").rglob("*")
    if path.is_file() and path.read_bytes().startswith(b"#!")
)

FAST: dict[str, tuple[str, ...]] = {
    "lint": (str(KIT / "ruff"), "check", "."),
    "format": (str(KIT / "ruff"), "format", "--check", "."),
    "types": (str(KIT / "mypy"),),
    "imports": (str(KIT / "lint-imports"),),
    "shell": (str(KIT / "shellcheck"), ".ci/run", "stacks/user_data.sh", *SCRIPTS),
    "verification": (*PYTEST, "tests/verification"),
    "fuzz": (*PYTEST, "tests/fuzz"),
    "contract": (*PYTEST, "tests/contract"),
    "launch": (*PYTEST, "tests/launch"),
    "router": (*PYTEST, "tests/router"),
    "bench": (*PYTEST, "tests/bench"),
    "local": (*PYTEST, "tests/local"),
    "aws": (*PYTEST, "tests/aws"),
    "job": (*PYTEST, "tests/job"),
    "infra": (*PYTEST, "tests/infra"),
    "ami": (*PYTEST, "tests/ami", "--ignore", "tests/ami/test_root.py"),
    "bench-router": (*PYTEST, "tests/bench_router"),
    "soak": (*PYTEST, "tests/soak"),
    "docs": (*PYTEST, "tests/docs"),
}
ENGINE: dict[str, tuple[str, ...]] = {
    # The engine environment has vLLM and no asyncio plugin: settings of its own.
    "plugin": (
        *(str(ENGINE_PYTHON), "-m", "pytest", "-q"),
        *("-c", "tests/plugin/pytest.ini", "--rootdir", ".", "tests/plugin"),
    ),
    "plugin on the next vLLM": (str(ENGINE_PYTHON), "-m", "tests.plugin.on_next_engine"),
    # Makes a Debian root, as root.
    "image steps": (*PYTEST, "tests/ami/test_root.py"),
    "engine": (*PYTEST, "tests/engine"),
    "rehearsal": (str(KIT / "turnback"), "rehearse"),
}


def main() -> int:
    """Run every room, also after a failure; returns 1 when one failed."""
    rooms = FAST if "--fast" in sys.argv[1:] else FAST | ENGINE
    minutes: dict[str, float] = {}
    failed: list[str] = []
    for room, command in rooms.items():
        print(f"== {room}", flush=True)  # noqa: T201 - a command's output
        began = time.perf_counter()
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            failed.append(room)
        minutes[room] = (time.perf_counter() - began) / 60
    print("\nminutes per room")  # noqa: T201
    for room, taken in minutes.items():
        print(f"  {room:23} {taken:5.1f}  {'FAILED' if room in failed else 'ok'}")  # noqa: T201
    print(f"  {'all':23} {sum(minutes.values()):5.1f}")  # noqa: T201
    print(f"{len(rooms) - len(failed)} passed, {len(failed)} failed")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
