"""Names and tags that carry the deployment's name."""

from runtime.contract.deployment import DeploymentSettings
from runtime.contract.names import resource_name


def instance_tags(settings: DeploymentSettings, role: str) -> dict[str, str]:
    """What the router finds instances by, and the tags that the settings want."""
    return {
        **settings.tags,
        "Name": resource_name(settings.name, role),
        "turnback:deployment": settings.name,
        "turnback:role": role,
    }
