"""Run the plugin's tests on the Python sources of the next vLLM, which has no CPU build.

    .venv-engine/bin/python -m tests.plugin.on_next_engine

Its wheel is fetched by pip under the hash of locks/engine-next.lock; only its .py files are
unpacked, and they run with the dependencies of the engine environment.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "locks" / "engine-next.lock"


def sources() -> Path:
    """Folder with the unpacked sources; fetched once per lock."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    folder = ROOT / "out" / f"engine-next-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*fetch, "--require-hashes", "-r", str(LOCK), "-d", draft], check=True)
        (wheel,) = Path(draft).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(Path(draft) / "sources", wanted)
        shutil.move(Path(draft) / "sources", folder)
    return folder


def main() -> int:
    """Fetch, run, and return pytest's exit code."""
    folder = sources()
    # Without the wheel's metadata vLLM cannot tell what it was built for.
    environment = os.environ | {"PYTHONPATH": str(folder), "VLLM_TARGET_DEVICE": "cpu"}
    argv = [sys.executable, "-m", "pytest", "-q", "-c", "tests/plugin/pytest.ini"]
    argv += ["--rootdir", ".", "tests/plugin", *sys.argv[1:]]
    return subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
