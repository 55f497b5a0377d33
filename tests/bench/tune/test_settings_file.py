"""Values into deployment.toml."""

import shutil
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.tune.settings_file import apply, edited
from runtime.errors import BadInput, BadSettings

SHIPPED = Path(__file__).parents[3] / "deployment.toml"
VALUES = {"decoder_kv_blocks_ttl_s": 95, "kv_recompute_threshold_tokens": 1024}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the file that the kit ships."""
    return Path(shutil.copy(SHIPPED, tmp_path / "deployment.toml"))


def test_the_shipped_file_changes_in_two_lines(path: Path) -> None:
    """Comments, their columns, order and every other line stay."""
    before = path.read_text().splitlines()
    told = apply(path, VALUES)
    after = path.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [
        (
            "decoder_kv_blocks_ttl_s = 480      # how long D keeps a finished turn's blocks",
            "decoder_kv_blocks_ttl_s = 95       # how long D keeps a finished turn's blocks",
        ),
        (
            "kv_recompute_threshold_tokens = 64 # below this P computes in place of pulling",
            "kv_recompute_threshold_tokens = 1024 # below this P computes in place of pulling",
        ),
    ]
    assert "+decoder_kv_blocks_ttl_s = 95" in told.difference
    assert told.profile == "qwen3-32b"


def test_a_second_time_nothing_changes(path: Path) -> None:
    """The file is not touched."""
    apply(path, VALUES)
    stamp = path.stat().st_mtime_ns
    assert apply(path, VALUES).difference == ""
    assert path.stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", "[kv]\na = 1\n"),
        ("x = 2", "x = 2\n\n[kv]\na = 1\n"),
        ("[kv]\n", "[kv]\na = 1\n"),
        ("[kv]", "[kv]\na = 1\n"),
        ("[kv]\nb = 2\n\n[other]\na = 3\n", "[kv]\nb = 2\na = 1\n\n[other]\na = 3\n"),
        ("[ kv ] # here\n  a=9# old\n", "[ kv ] # here\n  a=1 # old\n"),
        ("[other]\na = 3\n[kv]\r\na = 9\r\n", "[other]\na = 3\n[kv]\r\na = 1\r\n"),
        ("[kv]\n# a = 7\na = 1_000\n", "[kv]\n# a = 7\na = 1\n"),
        ('s = """\n[kv]\na = 5\n"""\n', None),
        ("kv = { a = 3 }\n", None),
        ("kv.a = 3\n", None),
        ("[kv]\n'a' = 3\n", None),
        ("[kv]\na = [\n 3,\n]\n", None),
        ("[kv\n", None),
    ],
)
def test_each_way_to_write_the_table(text: str, after: str | None) -> None:
    """Changed in place, or refused; never another value."""
    if after is None:
        with pytest.raises(ValueError, match=r".+"):
            edited(text, {"a": 1})
    else:
        assert edited(text, {"a": 1}) == after


@given(
    st.lists(
        st.sampled_from(
            ["[kv]", "[x]", "[kv.sub]", "a = 5", "b = 6 # b", "# [kv]", "", "s = 'a = 5'", "[[t]]"]
        ),
        max_size=10,
    ),
    st.integers(1, 9999),
)
def test_whatever_the_file_is_it_says_the_value_and_nothing_else(
    lines: list[str], value: int
) -> None:
    """Or it is refused; comments stay."""
    text = "\n".join(lines)
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    try:
        after = edited(text, {"a": value})
    except ValueError:
        return
    assert tomllib.loads(after) == {**before, "kv": {**before.get("kv", {}), "a": value}}
    assert after.count("#") == text.count("#")


def test_a_value_that_the_contract_refuses_is_not_written(path: Path) -> None:
    """A TTL below the margin and P's guard."""
    before = path.read_text()
    with pytest.raises(BadSettings) as caught:
        apply(path, {"decoder_kv_blocks_ttl_s": 14})
    assert "kv.decoder_kv_blocks_ttl_s" in str(caught.value)
    assert path.read_text() == before


def test_a_file_that_does_not_validate_is_not_written(path: Path) -> None:
    """Every problem is told, but not what the command line gives."""
    path.write_text(path.read_text().replace('"qwen3-32b"', '"nothing"') + "retries = 3\n")
    before = path.read_text()
    with pytest.raises(BadSettings) as caught:
        apply(path, VALUES)
    assert {each.field for each in caught.value.problems} == {"profile", "router.retries"}
    assert path.read_text() == before


def test_a_file_without_its_model_is_not_written(path: Path) -> None:
    """Only name and zone are the command line's."""
    path.write_text(path.read_text().replace("[model]", "[tags]"))
    with pytest.raises(BadSettings) as caught:
        apply(path, VALUES)
    assert "model" in {each.field for each in caught.value.problems}


@pytest.mark.parametrize("text", [None, b"\xff", b"[kv"])
def test_a_file_that_cannot_be_read_is_told(path: Path, text: bytes | None) -> None:
    """Missing, no text, no TOML."""
    path.unlink()
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(BadInput, match="cannot be read"):
        apply(path, VALUES)


def test_a_read_only_file_is_left_alone(path: Path) -> None:
    """Also by root, and no draft is left."""
    path.chmod(0o444)
    before = path.read_bytes()
    with pytest.raises(BadInput, match="cannot be written"):
        apply(path, VALUES)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_table_that_lines_cannot_change_is_told_with_the_lines(path: Path) -> None:
    """What to put in by hand."""
    text = path.read_text()
    start, end = text.index("[kv]"), text.index("[prefill]")
    path.write_text("kv = { kv_recompute_threshold_tokens = 64 }\n" + text[:start] + text[end:])
    with pytest.raises(BadInput, match="line by line") as caught:
        apply(path, VALUES)
    assert "decoder_kv_blocks_ttl_s = 95" in caught.value.fix


def test_mode_and_link_stay(path: Path) -> None:
    """A link goes on leading to the file, whose mode is kept."""
    path.chmod(0o640)
    link = path.with_name("link.toml")
    link.symlink_to(path)
    apply(link, VALUES)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert tomllib.loads(path.read_text())["kv"] == VALUES
