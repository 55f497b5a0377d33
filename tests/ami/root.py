"""A Debian root in which steps run as on a build instance, with what only EC2 has played.

Debian 13, which stands for Ubuntu 24.04: its systemd and glibc are no older.
"""

import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
OUT = REPOSITORY / "out" / "ami"
RELEASE = "trixie"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "ca-certificates,curl,kmod,python3,python3-venv,systemd,systemd-sysv,udev"


def base_archive() -> Path:
    """The bare root, made once and kept under out/.

    Raises:
        AssertionError: it cannot be made here, with the reason.
    """
    archive = OUT / f"root-{RELEASE}.tar"
    if archive.exists():
        return archive
    debootstrap = shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin")
    assert debootstrap, "debootstrap is missing: sudo apt-get install -y debootstrap"
    assert os.geteuid() == 0, "a root is made and entered by root alone: sudo make test"
    OUT.mkdir(parents=True, exist_ok=True)
    folder = OUT / f"root-{RELEASE}"
    shutil.rmtree(folder, ignore_errors=True)
    command = [debootstrap, "--variant=minbase", f"--include={PACKAGES}", RELEASE]
    done = subprocess.run(
        [*command, str(folder), MIRROR], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    draft = archive.with_suffix(".draft")
    subprocess.run(["/bin/tar", "-C", str(folder), "-cf", str(draft), "."], check=True)
    draft.rename(archive)
    shutil.rmtree(folder)
    return archive


@dataclass(frozen=True)
class Root:
    """A root that is thrown away after the tests."""

    path: Path

    def run(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a line of bash as root in it; mounts and processes end with it."""
        return subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.path}/proc"),
                *("chroot", str(self.path), "/bin/bash", "-c", command),
            ],
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def write(self, name: str, content: str | bytes, mode: int = 0o644) -> None:
        """Put a file there; name without the leading slash."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)

    def text(self, name: str) -> str:
        """Content of a file."""
        return (self.path / name).read_text("utf-8")


def unpacked(folder: Path) -> Root:
    """A fresh root with this machine's network settings and pip's downloads of earlier runs."""
    path = folder / "root"
    path.mkdir()
    subprocess.run(["/bin/tar", "-C", str(path), "-xf", str(base_archive())], check=True)
    root = Root(path)
    for name in ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt"):
        source = Path("/") / name
        if source.exists():
            (path / name).unlink(missing_ok=True)
            root.write(name, source.read_bytes())
    return root


def wheel(name: str, version: str, files: Mapping[str, str | bytes] = {}) -> tuple[str, bytes]:
    """A wheel's file name and content."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    content: dict[str, str | bytes] = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in content) + f"{info}/RECORD,,\n"
    path = OUT / f"{module}-{version}-py3-none-any.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(each), text)
    made = path.read_bytes()
    path.unlink()
    return path.name, made
