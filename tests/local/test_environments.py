"""`make setup`: where torch comes from, and what is made anew."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from runtime.errors import BadInput
from runtime.local.environments import (
    LOCKS,
    TORCH,
    TORCH_CPU_INDEX,
    _make,
    check_python,
    stamp_text,
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
