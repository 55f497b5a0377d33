"""One root, in which every step has run once."""

import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ami.bundle import bundle_files
from ami.versions import Versions, read_versions
from tests.ami.root import OUT, Root, unpacked, wheel

WORK = "var/tmp/turnback-image"
PYTHON = "3.13"
"""Of Debian 13."""
DOWNLOADS = OUT / "pip-cache"
ENGINE = (("vllm", "0.33.0"), ("nixl", "1.5.1"), ("nixl-cu13", "1.5.1"))
PLUGIN = "nixl_cu13.libs/nixl/libplugin_LIBFABRIC.so"

MODINFO = """#!/bin/bash
# Modules of a kernel that is not there: modinfo -k KERNEL -F FIELD MODULE
case "$5 $4" in
  "efa version") echo "3.3.0" ;;
  "nvidia version") echo "595.64" ;;
  "nvidia license") echo "Dual MIT/GPL" ;;
  "gdrdrv version") echo "2.5.2" ;;
  *) exit 1 ;;
esac
"""
INSTALLER = """#!/bin/bash
# What the EFA installer leaves, as far as the steps look at it.
set -e
[[ $* == -y ]]
echo run >>/var/log/efa-runs
install -d /opt/amazon/efa/bin /opt/amazon/efa/lib
echo "# EFA installer version: 1.50.0" >/opt/amazon/efa_installed_packages
printf '#!/bin/bash\\necho "fi_info: 2.6.0amzn1.0"\\necho "libfabric: 2.6.0amzn1.0"\\n' \\
  >/opt/amazon/efa/bin/fi_info
chmod +x /opt/amazon/efa/bin/fi_info
# A library whose name in itself is libfabric.so.1, which is what the loader's cache is made of.
sed 's/libselinux\\.so\\.1\\x00/libfabric.so.1\\x00\\x00/g' \\
  "$(readlink -f /usr/lib/x86_64-linux-gnu/libselinux.so.1)" >/opt/amazon/efa/lib/libfabric.so.1
"""


@dataclass(frozen=True)
class Machine:
    """A root with the bundle, and what the steps of a node have said in it."""

    root: Root
    said: dict[str, str]

    def step(self, line: str, **environment: str) -> tuple[int, str]:
        """Run a step with its arguments; exit code and all it says."""
        done = self.root.run(f"/{WORK}/steps/{line}", **environment)
        return done.returncode, done.stdout + done.stderr


def efa_archive() -> bytes:
    """A stand-in for the installer's archive, always of the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("aws-efa-installer/efa_installer.sh")
        member.mode, member.size = 0o755, len(INSTALLER.encode())
        archive.addfile(member, io.BytesIO(INSTALLER.encode()))
    return packed.getvalue()


def put_bundle(root: Root, versions: Versions) -> None:
    """The bundle as a build instance unpacks it, with an engine lock of three small wheels."""
    for name, source in bundle_files(versions).items():
        content = source.encode() if isinstance(source, str) else source.read_bytes()
        root.write(f"{WORK}/{name}", content, 0o755 if content.startswith(b"#!") else 0o644)
    # A library stands for NIXL's plugin; what it needs lies in the other folder of the wheel.
    library = (root.path / "usr/lib/x86_64-linux-gnu/libselinux.so.1").resolve().read_bytes()
    plugin = library.replace(b"libpcre2-8.so.0\0", b"libserdes.so\0\0\0\0")
    files: dict[str, dict[str, str | bytes]] = {
        "nixl-cu13": {PLUGIN: plugin, ".nixl_cu13.mesonpy.libs/libserdes.so": library},
        "nvidia-cuda-runtime": {"nvidia/cu13/lib/libcudart.so.13": library},
    }
    lock = ""
    for name, version in (*ENGINE, ("nvidia-cuda-runtime", "13.0.96")):
        file, made = wheel(name, version, files.get(name, {}))
        root.write(f"wheels/{file}", made)
        lock += f"{name}=={version} --hash=sha256:{hashlib.sha256(made).hexdigest()}\n"
    root.write(f"{WORK}/locks/engine-gpu.lock", lock)


def small_kernel(root: Root) -> None:
    """A package of the kernel that runs, with nothing in it but its folder of modules."""
    root.write(
        "build/kernel/DEBIAN/control",
        "Package: linux-image-played\nVersion: 1\nArchitecture: all\n"
        "Maintainer: nobody <nobody@localhost>\nDescription: played\n",
    )
    done = root.run(
        "mkdir -p /build/kernel/lib/modules/$(uname -r) /lib/modules && "
        "mkdir -p /build/kernel/usr && mv /build/kernel/lib /build/kernel/usr/ && "
        "dpkg-deb -b /build/kernel /build/kernel.deb && dpkg -i /build/kernel.deb"
    )
    assert done.returncode == 0, done.stderr


def pinned_here() -> Versions:
    """The committed versions, with an installer that can be had without a network."""
    versions = {name: dict(table) for name, table in read_versions().items()}
    versions["python"]["version"] = PYTHON
    digest = hashlib.sha256(efa_archive()).hexdigest()
    versions["efa"] |= {"url": "file:///build/efa.tar.gz", "sha256": digest}
    return versions


NODE_STEPS: dict[str, dict[str, str]] = {
    "20-kernel-hold.sh": {},
    "30-efa.sh": {},
    "40-libraries.sh": {},
    "50-limits.sh": {},
    "55-nvidia.sh": {},
    "60-kit.sh": {},
    "70-engine.sh": {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"},
    "80-units.sh": {},
    "90-image-file.sh node": {},
}
"""All but the update, which is run by a test of its own, and the cleaning, which is last."""


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A build instance after the steps of a node."""
    folder = tmp_path_factory.mktemp("ami")
    root = unpacked(folder)
    root.write("usr/local/sbin/modinfo", MODINFO, 0o755)
    root.write("build/efa.tar.gz", efa_archive())
    put_bundle(root, pinned_here())
    small_kernel(root)
    _give_downloads(root)
    # It stands for the libibverbs of EFA's installer, whose version image.json tells.
    root.write("usr/local/sbin/dpkg-query", DPKG_QUERY, 0o755)
    made = Machine(root, {})
    for line, environment in {"10-kernel-update.sh": {}, **NODE_STEPS}.items():
        code, made.said[line] = made.step(line, **environment)
        assert code == 0, f"{line}: {made.said[line]}"
    yield made
    shutil.rmtree(folder)


DPKG_QUERY = """#!/bin/bash
if [[ ${*: -1} == libibverbs1 ]]; then
  printf 64.0amzn0-1
else
  exec /usr/bin/dpkg-query "$@"
fi
"""


def _give_downloads(root: Root) -> None:
    """pip's downloads of earlier runs, so that a run does not fetch them again."""
    if DOWNLOADS.exists():
        shutil.copytree(DOWNLOADS, root.path / "root" / ".cache" / "pip")


def keep_downloads(root: Root) -> None:
    """What pip has fetched, for the next run; nothing where its index lies on this machine."""
    fetched = root.path / "root" / ".cache" / "pip"
    if fetched.exists():
        shutil.rmtree(DOWNLOADS, ignore_errors=True)
        shutil.copytree(fetched, DOWNLOADS)
