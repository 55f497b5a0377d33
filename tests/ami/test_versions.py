"""One place for versions: what else names one says the same."""

import re
import tomllib
from pathlib import Path

import pytest

from ami.versions import VERSIONS, read_versions, step_variables
from runtime.contract.deployment import ImageSettings
from runtime.contract.versions import SUPPORTED_ENGINES

ROOT = Path(__file__).parents[2]
PINS = read_versions()


def lock(name: str) -> dict[str, str]:
    """Package -> version of a lock."""
    text = (ROOT / name).read_text("utf-8")
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE))


def hashes(name: str, package: str) -> set[str]:
    """Digests of a package's files in a lock."""
    text = "\n" + (ROOT / name).read_text("utf-8")
    _, _, after = text.partition(f"\n{package}==")
    return set(re.findall(r"--hash=sha256:(\w{64})", re.split(r"\n(?=\S)", after)[0]))


def test_every_version_says_where_it_was_found() -> None:
    """A pin without a source cannot be checked by anyone."""
    assert len(PINS) == 10
    assert all(len(table["source"]) > 20 for table in PINS.values())


def test_version_without_a_source_is_refused(tmp_path: Path) -> None:
    """Also when it is added later."""
    path = tmp_path / "versions.toml"
    path.write_text(VERSIONS.read_text("utf-8") + '\n[new]\nversion = "1"\n', "utf-8")
    with pytest.raises(ValueError, match=r"\[new\].*no source"):
        read_versions(path)


@pytest.mark.parametrize(("digest", "is_taken"), [("", True), ("a" * 64, True), ("abc", False)])
def test_digest_is_one_or_none(digest: str, is_taken: bool, tmp_path: Path) -> None:
    """None makes the step refuse; anything else would only fail there."""
    path = tmp_path / "versions.toml"
    text = re.sub(r"(?m)^sha256 = .*$", f'sha256 = "{digest}"', VERSIONS.read_text("utf-8"))
    path.write_text(text, "utf-8")
    if is_taken:
        assert read_versions(path)["efa"]["sha256"] == digest
        return
    with pytest.raises(ValueError, match=r"efa\.sha256"):
        read_versions(path)


def test_variables_are_plain_shell() -> None:
    """Steps source them: a quote in a value would be code."""
    text = step_variables(PINS)
    assert "EFA_INSTALLER='1.50.0'\n" in text
    assert all(re.fullmatch(r"[A-Z_0-9]+='[\w.+:/-]*'", line) for line in text.splitlines())
    with pytest.raises(ValueError, match=r"efa\.url must be a plain word"):
        step_variables({"efa": {"url": "';rm -rf /'"}})


def test_steps_use_variables_that_are_there() -> None:
    """A misspelt one would stop a build after an hour."""
    given = set(re.findall(r"^([A-Z_0-9]+)=", step_variables(PINS), re.MULTILINE))
    tables = tuple(f"{name.upper()}_" for name in PINS)
    for step in (ROOT / "ami" / "steps").glob("*.sh"):
        used = set(re.findall(r"\$\{?([A-Z_0-9]+)", step.read_text("utf-8")))
        assert {name for name in used if name.startswith(tables)} <= given, step.name


def test_installers_address_has_its_version() -> None:
    """A new version must not fetch the old file."""
    assert PINS["efa"]["url"].endswith(f"-{PINS['efa']['installer']}.tar.gz")


def test_locks_have_the_pinned_versions() -> None:
    """The GPU environment, the CPU one and the sources that the connector is tested on."""
    engine = lock(PINS["engine"]["lock"])
    assert engine["vllm"] == PINS["engine"]["vllm"]
    assert engine["nixl"] == engine[PINS["nixl"]["package"]] == PINS["nixl"]["version"]
    assert lock("locks/engine.lock")["nixl"] == PINS["nixl"]["version"]
    assert lock("locks/engine-next.lock")["vllm"] == PINS["engine"]["vllm"]
    (digest,) = re.findall(r"sha256:(\w{64})", (ROOT / "locks/engine-next.lock").read_text("utf-8"))
    assert digest in hashes(PINS["engine"]["lock"], "vllm")


def test_nixl_is_built_for_the_cuda_of_torch() -> None:
    """nixl loads the flavour of the CUDA that it finds, and fails where that is missing."""
    engine = lock(PINS["engine"]["lock"])
    cuda = PINS["nvidia"]["cuda"]
    assert engine["nvidia-cuda-runtime"].startswith(f"{cuda}.")
    assert PINS["nixl"]["package"] == f"nixl-cu{cuda.split('.')[0]}"


def test_nodes_get_the_packages_that_tests_run_with() -> None:
    """locks/node.lock is the part of locks/kit.lock that the wheel wants, file for file."""
    node, kit = lock(PINS["kit"]["lock"]), lock("locks/kit.lock")
    assert node.items() <= kit.items()
    for package in node:
        assert hashes("locks/node.lock", package) == hashes("locks/kit.lock", package), package
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = {re.split(r"[^\w-]", each)[0] for each in project["dependencies"]}
    assert wanted <= set(node)
    assert "moto" not in node


def test_python_of_the_image_is_one_that_the_kit_takes() -> None:
    """And the one that the engine's lock was made for."""
    version = PINS["python"]["version"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert version in ("3.11", "3.12", "3.13")
    head = (ROOT / PINS["engine"]["lock"]).read_text("utf-8")[:300]
    assert f"--python-version {version} " in head


def test_settings_take_the_images_engine_by_default() -> None:
    """A fleet of this kit boots an image of this kit."""
    default = ImageSettings().engine_version
    assert PINS["engine"]["vllm"].startswith(f"{default}.")
    assert default in SUPPORTED_ENGINES


@pytest.mark.parametrize(
    ("pattern", "table", "key"),
    [
        (r"EFA installer (\d+\.\d+\.\d+)", "efa", "installer"),
        (r"libfabric (\d[\w.]*amzn[\w.]*)", "efa", "libfabric"),
        (r"rdma-core (\d[\d.]*\d)", "efa", "rdma_core"),
        (r"kernel module (\d[\d.]*\d)", "efa", "kernel_module"),
        (r"Ubuntu (\d\d\.\d\d)", "base", "ubuntu"),
        (r"the image has (\d+\.\d+)", "python", "version"),
        (r"at least (\d+) and \d", "nvidia", "driver_at_least"),
        (r"at least \d+ and (\d[\d.]*\d), the open", "gdrcopy", "version_at_least"),
        (r"nixl-cu\d+ (\d+\.\d+\.\d+)", "nixl", "version"),
        (r"image of vLLM (\d+\.\d+\.\d+)", "engine", "vllm"),
    ],
)
def test_pages_name_the_pinned_versions(pattern: str, table: str, key: str) -> None:
    """A page that was not changed with them misleads."""
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    found = {each for page in pages for each in re.findall(pattern, page.read_text("utf-8"))}
    assert found == {PINS[table][key]}
