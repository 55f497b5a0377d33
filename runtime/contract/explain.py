"""pydantic's validation errors as the kit's messages: what, got, allowed, fix."""

from pydantic import ValidationError

from runtime.errors import BadInput


def explain(error: ValidationError, source: str) -> BadInput:
    """Turn a validation error into one message that lists every problem.

    Args:
        error: what pydantic raised.
        source: where the values came from, such as a file name.
    """
    fields = [".".join(map(str, entry["loc"])) or "(whole)" for entry in error.errors()]
    got = "; ".join(
        f"{field} = {entry['input']!r}"
        for field, entry in zip(fields, error.errors(), strict=True)
        if entry["loc"] and entry["type"] != "missing"
    )
    return BadInput(
        f"{source}: {len(fields)} value(s) cannot be used",
        got=got or ", ".join(fields),
        allowed="; ".join(
            f"{field}: {entry['msg']}" for field, entry in zip(fields, error.errors(), strict=True)
        ),
        fix=f"correct {', '.join(fields)} in {source}",
    )
