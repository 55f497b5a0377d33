"""Names and tags that carry the deployment's name."""

from runtime.contract.deployment import DeploymentSettings


def resource_name(deployment: str, part: str) -> str:
    """Physical name of what must have one."""
    return f"turnback-{deployment}-{part}"


def instance_tags(settings: DeploymentSettings, role: str) -> dict[str, str]:
    """What the router finds instances by, and the tags that the settings want."""
    return {
        **settings.tags,
        "Name": resource_name(settings.name, role),
        "turnback:deployment": settings.name,
        "turnback:role": role,
    }
