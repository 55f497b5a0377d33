"""The steps, run for real in a Debian root."""

import re
from collections.abc import Callable, Iterator

import pytest

from ami.versions import read_versions
from cdk.wheel import build_kit_wheel
from runtime.contract.image import ImageFile
from runtime.contract.node import ImageSpec
from tests.ami.conftest import (
    ENGINE,
    NODE_STEPS,
    PLUGIN,
    PYTHON,
    WORK,
    Machine,
    keep_downloads,
    pinned_here,
)
from tests.ami.root import OUT, REPOSITORY, wheel

UNITS = ("instance-store", "efa", "node", "cloudwatch")


def state(machine: Machine) -> dict[str, str]:
    """What the steps have made, file by file, with digests; times left out."""
    places = "/etc/turnback /etc/systemd /etc/security /etc/sysctl.d /etc/ld.so.conf.d"
    done = machine.root.run(
        f"find {places} /opt -type f -not -name '*.pyc' -not -name image.json -print0 | "
        "xargs -0 sha256sum; find /etc/systemd -type l -printf '%l  %p\\n'; apt-mark showhold"
    )
    assert done.returncode == 0, done.stderr
    return dict(reversed(line.partition("  ")[::2]) for line in done.stdout.splitlines())


@pytest.mark.parametrize("line", NODE_STEPS)
def test_step_can_be_run_again(line: str, machine: Machine) -> None:
    """It succeeds, and leaves what was there: a build instance reboots in the middle."""
    before = state(machine)
    assert len(before) > 1000
    code, said = machine.step(line, **NODE_STEPS[line])
    assert code == 0, said
    assert state(machine) == before


def test_update_reaches_the_release(machine: Machine) -> None:
    """apt has read its lists of packages."""
    assert "upgraded" in machine.said["10-kernel-update.sh"]


def test_kernel_is_held(machine: Machine) -> None:
    """Nothing changes it under EFA's module."""
    assert machine.root.run("apt-mark showhold").stdout.split() == ["linux-image-played"]


def test_newer_kernel_wants_a_reboot_first(machine: Machine) -> None:
    """Else EFA's module would be built for one that is gone at the next boot."""
    machine.root.run("mkdir /lib/modules/999.0")
    code, said = machine.step("20-kernel-hold.sh")
    machine.root.run("rmdir /lib/modules/999.0")
    assert code == 1
    assert "999.0 is installed: reboot first" in said


def test_efa_is_installed_once(machine: Machine) -> None:
    """What is there in the wanted version is left alone."""
    assert machine.root.text("var/log/efa-runs") == "run\n"


@pytest.mark.parametrize(
    ("digest", "told"), [("", "nothing is installed unchecked"), ("0" * 64, "not the file")]
)
def test_efa_installer_is_not_run_unchecked(digest: str, told: str, machine: Machine) -> None:
    """No digest, or another: nothing of it is run."""
    variables = f"{WORK}/steps/versions.env"
    before = machine.root.text(variables)
    changed = re.sub(r"(?m)^EFA_SHA256=.*$", f"EFA_SHA256='{digest}'", before)
    assert changed != before
    machine.root.write(variables, changed)
    machine.root.run("mv /opt/amazon /opt/amazon.away")
    code, said = machine.step("30-efa.sh")
    machine.root.run("rm -rf /opt/amazon; mv /opt/amazon.away /opt/amazon")
    machine.root.write(variables, before)
    assert code == 1
    assert told in said
    assert machine.root.text("var/log/efa-runs") == "run\n"


@pytest.mark.parametrize(
    ("step", "changed", "told"),
    [
        ("30-efa.sh", ('"3.3.0"', '"2.17"'), "kernel module 2.17"),
        ("30-efa.sh", ("efa version", "other version"), "built for another kernel"),
        ("55-nvidia.sh", ("595.64", "570.1"), "driver 570.1, CUDA 13.0 wants 580"),
        ("55-nvidia.sh", ("Dual MIT/GPL", "NVIDIA"), "not the open one"),
        ("55-nvidia.sh", ("gdrdrv", "other"), "no gdrcopy"),
        ("55-nvidia.sh", ("2.5.2", "2.4.1"), "gdrcopy 2.4.1, 2.5 or newer"),
    ],
)
def test_drivers_that_do_not_fit_stop_the_build(
    step: str, changed: tuple[str, str], told: str, machine: Machine
) -> None:
    """Here, not on a node that costs by the hour."""
    name = "usr/local/sbin/modinfo"
    before = machine.root.text(name)
    machine.root.write(name, before.replace(*changed), 0o755)
    code, said = machine.step(step)
    machine.root.write(name, before, 0o755)
    assert code == 1
    assert told in said


def test_libfabric_is_found_in_efas_folder(machine: Machine) -> None:
    """Also beside another one that a package brings."""
    said = machine.said["40-libraries.sh"]
    assert "libfabric.so.1: /opt/amazon/efa/lib/libfabric.so.1" in said
    assert "libhwloc.so.15: /" in said


def test_missing_libfabric_stops_the_build(machine: Machine) -> None:
    """NIXL's plugin would not load, and NIXL would say no more than that."""
    machine.root.run("mv /opt/amazon/efa/lib /opt/amazon/efa/lib.away")
    code, said = machine.step("40-libraries.sh")
    machine.root.run("mv /opt/amazon/efa/lib.away /opt/amazon/efa/lib; ldconfig")
    assert code == 1
    assert "does not find libfabric.so.1" in said


def test_kit_environment_holds_what_the_wheel_wants(machine: Machine) -> None:
    """And not the kit: that comes at boot, as it is deployed."""
    done = machine.root.run(
        "/opt/turnback/venv/bin/python -c 'import aiohttp, boto3, pydantic, typer, valkey' && "
        "/opt/turnback/venv/bin/python -m pip list --format=freeze"
    )
    assert done.returncode == 0, done.stderr
    assert "boto3==" in done.stdout
    assert "turnback" not in done.stdout
    for word in ("moto", "aws-cdk", "pytest"):
        assert word not in done.stdout


def test_wheel_of_the_kit_finds_all_it_wants(machine: Machine) -> None:
    """As user data installs it, without an index; and its commands run on the image's Python."""
    built = build_kit_wheel(REPOSITORY, OUT)
    machine.root.write(f"build/{built.name}", built.read_bytes())
    python = "/opt/turnback/venv/bin/python -m pip --disable-pip-version-check"
    done = machine.root.run(
        f"{python} install --quiet --no-index /build/{built.name} && "
        "/opt/turnback/venv/bin/turnback router --help"
    )
    machine.root.run(f"{python} uninstall --yes turnback")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--deployment" in done.stdout


def test_other_python_than_pinned_stops_the_build(machine: Machine) -> None:
    """The engine's lock was made for one."""
    variables = f"{WORK}/steps/versions.env"
    before = machine.root.text(variables)
    machine.root.write(variables, before.replace(f"='{PYTHON}'", "='3.12'"))
    code, said = machine.step("60-kit.sh")
    machine.root.write(variables, before)
    assert code == 1
    assert f"is {PYTHON}, ami/versions.toml says 3.12" in said


def test_environment_from_another_lock_is_made_anew(machine: Machine) -> None:
    """A half-made or old one is never taken."""
    machine.root.run("rm /opt/turnback/venv-engine/.turnback-lock")
    machine.root.run("touch /opt/turnback/venv-engine/left-over")
    code, said = machine.step("70-engine.sh", **NODE_STEPS["70-engine.sh"])
    assert code == 0, said
    assert not (machine.root.path / "opt/turnback/venv-engine/left-over").exists()


def test_package_of_another_digest_stops_the_build(machine: Machine) -> None:
    """And leaves no environment that looks whole."""
    lock = f"{WORK}/locks/engine-gpu.lock"
    before = machine.root.text(lock)
    machine.root.write(lock, re.sub(r"sha256:\w{8}", "sha256:00000000", before))
    code, said = machine.step("70-engine.sh", **NODE_STEPS["70-engine.sh"])
    assert code != 0
    assert "DO NOT MATCH" in said
    assert not (machine.root.path / "opt/turnback/venv-engine/.turnback-lock").exists()
    machine.root.write(lock, before)
    code, said = machine.step("70-engine.sh", **NODE_STEPS["70-engine.sh"])
    assert code == 0, said


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (f"lib/python{PYTHON}/site-packages/{PLUGIN}", "has no plugin for libfabric"),
        (f"lib/python{PYTHON}/site-packages/nvidia/cu13/lib/libcudart.so.13", "no libcudart.so.13"),
    ],
)
def test_engine_without_its_libraries_is_refused(name: str, told: str, machine: Machine) -> None:
    """A wheel that lacks one would be found by a node, in the middle of the night."""
    path = f"/opt/turnback/venv-engine/{name}"
    machine.root.run(f"mv {path} /build/away")
    code, said = machine.step("70-engine.sh")
    machine.root.run(f"mv /build/away {path}")
    assert code == 1
    assert told in said


def test_plugin_that_would_not_load_is_refused(machine: Machine) -> None:
    """NIXL would say no more than that it has no such backend."""
    path = f"opt/turnback/venv-engine/lib/python{PYTHON}/site-packages/{PLUGIN}"
    before = (machine.root.path / path).read_bytes()
    changed = before.replace(b"libserdes.so\0\0", b"libfabric.so.9")
    assert changed != before
    machine.root.write(path, changed)
    code, said = machine.step("70-engine.sh")
    machine.root.write(path, before)
    assert code == 1
    assert "would not load without: libfabric.so.9" in said


def test_cudas_runtime_is_on_the_loaders_path(machine: Machine) -> None:
    """NIXL's plugin asks the loader for it, and not Python."""
    folder = machine.root.text("etc/ld.so.conf.d/990-turnback-cuda.conf").strip()
    assert folder.endswith("/nvidia/cu13/lib")
    assert (machine.root.path / folder.lstrip("/") / "libcudart.so.13").exists()


def test_limits_are_there(machine: Machine) -> None:
    """Locked memory for people and for services; 2 MiB pages."""
    assert "memlock unlimited" in machine.root.text("etc/security/limits.d/90-turnback.conf")
    assert "DefaultLimitMEMLOCK=infinity" in machine.root.text(
        "etc/systemd/system.conf.d/90-turnback.conf"
    )
    assert "vm.nr_hugepages" in machine.root.text("etc/sysctl.d/90-turnback.conf")


def test_units_are_valid(machine: Machine) -> None:
    """systemd says nothing of them, warnings included."""
    machine.root.write("opt/turnback/venv/bin/turnback", "#!/bin/bash\n", 0o755)
    ctl = "opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
    machine.root.write(ctl, "#!/bin/bash\n", 0o755)
    done = machine.root.run(
        "SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "
        + " ".join(f"/etc/systemd/system/turnback-{unit}.service" for unit in UNITS)
    )
    machine.root.run(f"rm /opt/turnback/venv/bin/turnback /{ctl}")
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""


def test_what_boots_is_enabled_and_the_engine_is_not(machine: Machine) -> None:
    """The engine waits for a kit and a role, which the first boot brings."""
    listed = machine.root.run("ls /etc/systemd/system/multi-user.target.wants").stdout.split()
    found = {name for name in listed if name.startswith("turnback")}
    assert found == {f"turnback-{unit}.service" for unit in UNITS if unit != "node"}
    masked = machine.root.run("readlink /etc/systemd/system/dlami-nvme.service").stdout
    assert masked.strip() == "/dev/null"


def test_image_file_is_what_boot_reads(machine: Machine) -> None:
    """It is valid for the contract, and fits the specs of this kit."""
    image = ImageFile.model_validate_json(machine.root.text("etc/turnback/image.json"))
    assert (image.kind, image.engine, image.nixl) == ("node", "0.33.0", "1.5.1")
    assert (image.efa_installer, image.libfabric) == ("1.50.0", "2.6.0amzn1.0")
    assert (image.rdma_core, image.driver) == ("64.0amzn0-1", "595.64")
    assert image.mismatch(ImageSpec(engine_version="0.33")) is None


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("opt/amazon/efa/bin/fi_info", ("libfabric: 2.6.0amzn1.0", "libfabric: 1.22"), "libfabric"),
        ("usr/local/sbin/dpkg-query", ("64.0amzn0-1", "50.0-2"), "rdma-core 50.0-2"),
    ],
)
def test_other_libraries_than_pinned_are_no_image(
    name: str, changed: tuple[str, str], told: str, machine: Machine
) -> None:
    """The old file stays as it was."""
    before, image = machine.root.text(name), machine.root.text("etc/turnback/image.json")
    machine.root.write(name, before.replace(*changed), 0o755)
    code, said = machine.step("90-image-file.sh node")
    machine.root.write(name, before, 0o755)
    assert code == 1
    assert told in said
    assert machine.root.text("etc/turnback/image.json") == image


@pytest.mark.parametrize("code", [0, 3])
def test_verify_asks_the_doctor_and_leaves_no_kit(code: int, machine: Machine) -> None:
    """Its word is the build's; the image stays without a kit."""
    entry = f"import sys\nprint(*sys.argv[1:])\nsys.exit({code})\n"
    name, made = wheel("turnback", "9.9", {"runtime/__init__.py": "", "runtime/entry.py": entry})
    machine.root.write(f"{WORK}/{name}", made)
    done = machine.root.run(f"/{WORK}/verify.sh /{WORK}/{name}")
    assert done.returncode == code, done.stderr
    assert done.stdout.strip() == "doctor --stage image"
    assert machine.root.run("ls -d /tmp/tmp.*").returncode != 0
    assert machine.root.run("/opt/turnback/venv/bin/python -c 'import runtime'").returncode != 0


def test_router_image_is_light(machine: Machine) -> None:
    """The kit's environment, the agent, and a file that says so; no engine, no EFA."""
    code, said = machine.step("81-router-units.sh")
    assert code == 0, said
    before = machine.root.text("etc/turnback/image.json")
    code, said = machine.step("90-image-file.sh router")
    image = ImageFile.model_validate_json(machine.root.text("etc/turnback/image.json"))
    machine.root.write("etc/turnback/image.json", before)
    assert code == 0, said
    assert (image.kind, image.engine, image.efa_installer) == ("router", None, None)
    assert "efa" not in machine.root.text("opt/turnback/etc/cloudwatch.json")
    assert machine.step("80-units.sh")[0] == 0


DISKS = ("nvme1n1", "nvme2n1")
STORE = "/opt/turnback/libexec/instance-store"


@pytest.fixture
def disks(machine: Machine) -> Iterator[Callable[..., list[str]]]:
    """Runs the instance store's script on played disks; lists what it has called."""
    by_id = machine.root.path / "dev" / "disk" / "by-id"
    for name in ("mountpoint", "blkid", "mdadm", "mkfs.xfs", "mount"):
        script = f'#!/bin/bash\necho "{name} $*" >>/build/calls\n[[ " $PLAYED " == *" {name} "* ]]'
        answer = f"{script} && echo /dev/played\n" if name == "blkid" else f"{script}\n"
        machine.root.write(f"usr/local/sbin/{name}", answer, 0o755)

    def run(*found: str, played: str) -> list[str]:
        by_id.mkdir(parents=True, exist_ok=True)
        for number, disk in enumerate(found):
            link = f"nvme-Amazon_EC2_NVMe_Instance_Storage_AWS{number}"
            for name in (link, f"{link}-ns-1"):
                (by_id / name).symlink_to(f"../../{disk}")
            (by_id / f"{link}-part1").symlink_to(f"../../{disk}p1")
            machine.root.write(f"dev/{disk}", "")
        machine.root.write("build/calls", "")
        done = machine.root.run(STORE, PLAYED=played)
        for each in by_id.iterdir():
            each.unlink()
        assert done.returncode == 0, done.stderr
        return machine.root.text("build/calls").splitlines()

    yield run
    for name in ("mountpoint", "blkid", "mdadm", "mkfs.xfs", "mount"):
        (machine.root.path / "usr/local/sbin" / name).unlink()


TARGET = "/opt/turnback/models"


def test_new_disks_become_one(disks: Callable[..., list[str]]) -> None:
    """Every disk once, whatever links there are to it."""
    calls = disks(*DISKS, played="mdadm mkfs.xfs mount")
    assert calls[-3:] == [
        "mdadm --create /dev/md/turnback --run --homehost=any --name=turnback --level=0 "
        "--raid-devices=2 /dev/nvme1n1 /dev/nvme2n1",
        "mkfs.xfs -f -K -L turnback /dev/md/turnback",
        f"mount -o noatime /dev/md/turnback {TARGET}",
    ]


def test_one_disk_needs_no_array(disks: Callable[..., list[str]]) -> None:
    """Build instances have one."""
    calls = disks("nvme1n1", played="mkfs.xfs mount")
    assert calls[-2:] == [
        "mkfs.xfs -f -K -L turnback /dev/nvme1n1",
        f"mount -o noatime /dev/nvme1n1 {TARGET}",
    ]


def test_disks_with_models_keep_them(disks: Callable[..., list[str]]) -> None:
    """After a reboot nothing is made anew."""
    calls = disks(*DISKS, played="mdadm blkid mount")
    assert not any("--create" in call or call.startswith("mkfs") for call in calls)
    assert calls[-1] == f"mount -o noatime /dev/played {TARGET}"


def test_mounted_disks_are_left_alone(disks: Callable[..., list[str]]) -> None:
    """The unit may be restarted."""
    assert disks(*DISKS, played="mountpoint") == [f"mountpoint -q {TARGET}"]


def test_machine_without_disks_boots(disks: Callable[..., list[str]]) -> None:
    """Models go to the root volume, and the unit says so."""
    assert disks(played="") == [f"mountpoint -q {TARGET}"]


def test_pins_of_this_room_are_the_committed_ones() -> None:
    """What is played has the versions that are pinned."""
    versions = read_versions()
    assert dict(ENGINE) == {
        "vllm": versions["engine"]["vllm"],
        "nixl": versions["nixl"]["version"],
        versions["nixl"]["package"]: versions["nixl"]["version"],
    }
    assert pinned_here()["efa"]["installer"] == versions["efa"]["installer"]


def test_cleaning_leaves_no_downloads(machine: Machine) -> None:
    """Last of all, as in a build."""
    keep_downloads(machine.root)
    code, said = machine.step("99-clean.sh")
    assert code == 0, said
    assert not (machine.root.path / "root" / ".cache").exists()
    assert not any((machine.root.path / "var/lib/apt/lists").iterdir())
