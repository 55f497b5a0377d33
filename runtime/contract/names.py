"""Names that a deployment's stacks give and its commands ask for."""


def resource_name(deployment: str, part: str) -> str:
    """Physical name of what must have one: stacks, groups, image pipelines."""
    return f"turnback-{deployment}-{part}"


def image_log_group(pipeline: str) -> str:
    """Where Image Builder writes a pipeline's log."""
    return f"/aws/imagebuilder/{pipeline}"
