"""Files that a reader sees as they were or as they are now, never half."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Put a text in a file's place; its folder is made. Line ends stay as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, "utf-8", newline="")
    draft.replace(path)
