"""The script of an instance's first boot."""

from collections.abc import Mapping
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "user_data.sh"
MOST_BYTES = 15_000
"""EC2 takes 16 KiB before base64; references grow when CloudFormation fills them in."""
_SHEBANG = "#!/bin/bash\n"


def render_user_data(variables: Mapping[str, str]) -> str:
    """Put variables before the script; both together are valid shell as stored.

    Args:
        variables: name -> value; references may stand in values, quotes may not.
    """
    for name, value in variables.items():
        if "'" in value or "\n" in value:
            raise ValueError(f"{name} must hold no quote and no line break, not {value!r}")
    lines = [f"{name}='{value}'\n" for name, value in sorted(variables.items())]
    return "".join([_SHEBANG, *lines, SCRIPT.read_text("utf-8").removeprefix(_SHEBANG)])
