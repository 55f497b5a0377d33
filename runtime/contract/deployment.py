"""What `deployment.toml` says: one deployment, from the network to the router.

Every field tells its unit, its default and what changing it does to a live deployment.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from runtime.contract.node import DRAIN_S, EngineVersion, Frozen, KvTransferSpec
from runtime.contract.operations import ScaleDown
from runtime.contract.profile import load_profile
from runtime.contract.rules import CidrText, HttpUrl, region_of, rule_problems

AmiId = Annotated[str, Field(pattern=r"^ami-([0-9a-f]{8}|[0-9a-f]{17})$")]
SubnetId = Annotated[str, Field(pattern=r"^subnet-([0-9a-f]{8}|[0-9a-f]{17})$")]
ReservationId = Annotated[str, Field(pattern=r"^cr-([0-9a-f]{8}|[0-9a-f]{17})$")]


def _in_utc(moment: datetime) -> datetime:
    if moment.utcoffset() != timedelta(0):
        raise ValueError("must be in UTC, as 2027-01-31T11:30:00Z")
    return moment


class OnDemand(Frozen):
    """On-demand instances in a cluster placement group that the kit creates."""

    kind: Literal["on_demand"] = "on_demand"


class Reservation(Frozen):
    """Instances of an On-Demand Capacity Reservation."""

    kind: Literal["reservation"]
    capacity_reservation_id: ReservationId
    """Must be `targeted`, of the role's type and zone. Changing it: new instances only."""
    placement_group: str | None = Field(default=None, min_length=1, max_length=255)
    """Name of the group the reservation was made in; None where it was made in none.
    Any other group would ask for room outside of the reservation."""


class CapacityBlock(Frozen):
    """Instances of a Capacity Block for ML, which has its place already: no group."""

    kind: Literal["capacity_block"]
    capacity_reservation_id: ReservationId
    """Of the block. Changing it: new instances only."""
    ends_at: Annotated[AwareDatetime, AfterValidator(_in_utc)]
    """End of the block, UTC. The group is scaled to 0 one hour before: EC2 begins to end
    instances 30 minutes before. Changing it moves that hour."""

    @property
    def scales_in_at(self) -> datetime:
        """When the role's group goes to 0."""
        return self.ends_at - timedelta(hours=1)

    @property
    def drains_at(self) -> datetime:
        """When a node stops taking requests, so that none runs when the group goes to 0."""
        return self.scales_in_at - timedelta(seconds=DRAIN_S)


CapacityPlan = Annotated[OnDemand | Reservation | CapacityBlock, Field(discriminator="kind")]


class RoleSettings(Frozen):
    """The nodes of one role."""

    instance_type: str = "p5en.48xlarge"
    """Row of the instance table. Changing it: new instances only."""
    count: int = Field(default=1, ge=1, le=256)
    """Instances of the role; `turnback scale` starts and ends them."""
    spare: int = Field(default=1, ge=0, le=256)
    """How many more may run while `turnback rollout` replaces nodes; a limit, no node that runs."""
    tensor_parallel_size: Literal[1, 2, 4, 8] = 8
    """GPUs that one engine spans; a node runs one engine."""
    root_volume_gib: int = Field(default=200, ge=100, le=16_384)
    """Encrypted root volume; models lie on the instance store. New instances only."""
    capacity: CapacityPlan = OnDemand()


class ModelSettings(Frozen):
    """The served model."""

    id: str = Field(pattern=r"^\w[\w.-]*/\w[\w.-]*$")
    """As on the Hugging Face hub; also the name that clients send."""
    revision: str = Field(min_length=1, pattern=r"^\w[\w.-]*$")
    """Commit of its files. Changing id or revision replaces no instance but needs new ones."""
    attention: Literal["standard", "mla"] = "standard"
    """Kind of its KV. MLA has not been shown to be exact on GPUs."""
    accept_unproven: bool = False
    """Serve a kind that was not shown to be exact."""

    @property
    def path(self) -> str:
        """Below a node's folder of models, and in the bucket."""
        return f"{self.id}/{self.revision}"


class OwnNetwork(Frozen):
    """A VPC that the kit creates: one zone, one subnet for nodes."""

    kind: Literal["own"] = "own"
    cidr: CidrText = "10.20.0.0/16"
    """Of the VPC, /16 to /24. Changing it replaces the network and all in it."""
    egress: Literal["internet", "endpoints"] = "internet"
    """`internet`: a NAT gateway. `endpoints`: no way out but the VPC endpoints listed in
    docs/deploy.md. Changing it replaces the nodes' subnet."""
    client_cidrs: tuple[CidrText, ...] = Field(min_length=1)
    """Who may reach the router's address."""


class ImportedNetwork(Frozen):
    """A VPC and a private subnet that are there."""

    kind: Literal["imported"]
    vpc_id: str = Field(pattern=r"^vpc-([0-9a-f]{8}|[0-9a-f]{17})$")
    subnet_id: SubnetId
    """Private, in the deployment's zone, with a way to the services of docs/deploy.md."""
    client_cidrs: tuple[CidrText, ...] = Field(min_length=1)
    """Who may reach the router's address."""


NetworkSettings = Annotated[OwnNetwork | ImportedNetwork, Field(discriminator="kind")]


class ImageSettings(Frozen):
    """The machine images, and what they must say of themselves."""

    engine_version: EngineVersion = "0.33"
    """Minor version of vLLM in the image; a node refuses an image of another one."""
    ami_id: AmiId | None = None
    """Of GPU nodes, as `turnback image build` prints it. None: the image stack alone can be
    deployed. Changing it: new instances only."""
    router_ami_id: AmiId | None = None
    """Of router nodes; None: the same."""
    build_instance_type: str = Field(default="g6.2xlarge", pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")
    """On which the nodes' image is built and tested: x86-64 with an NVIDIA GPU, which the
    driver wants to see. Next build."""
    build_subnet_id: SubnetId | None = None
    """With a way to the internet, for build instances; None: the account's default VPC."""
    build_security_group_id: str | None = Field(
        default=None, pattern=r"^sg-([0-9a-f]{8}|[0-9a-f]{17})$"
    )
    """Of build instances, with outbound HTTP and HTTPS; with `build_subnet_id` alone."""


class RouterSettings(Frozen):
    """The router service."""

    replicas: int = Field(default=1, ge=1, le=16)
    """Router nodes; with more than one they share handles in a Valkey store."""
    instance_type: str = Field(default="c7i.2xlarge", pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")
    """CPU nodes, x86-64. Changing it: new instances only."""
    certificate_arn: str | None = Field(default=None, pattern=r"^arn:aws[\w-]*:acm:")
    """ACM certificate: the address then speaks TLS on port 443."""
    allow_plain_http: bool = False
    """Without a certificate: accept that keys and prompts cross the network in clear, port 80."""
    store_node_type: str = Field(default="cache.m7g.large", pattern=r"^cache\.[a-z0-9]+\.\w+$")
    """Of the Valkey store, where replicas > 1."""


class TransportSettings(Frozen):
    """What KV travels over."""

    allow_tcp: bool = False
    """Serve also where EFA is not to be had: slow, and never by accident."""


# fmt: off
LogRetentionDays = Literal[
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922,
    3288, 3653,
]
# fmt: on
"""What CloudWatch Logs can be told."""


class OperationsSettings(Frozen):
    """Logs and alarms."""

    log_retention_days: LogRetentionDays = 30
    """Of every log group of machines. Shortening it deletes what is older."""
    alarm_email: str | None = Field(default=None, pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")
    """Told by the topic, once its owner has followed the link in AWS's mail. None: others may
    subscribe. Changing it makes another subscription."""
    idle_alarm_minutes: int = Field(default=60, ge=10, le=1440, multiple_of=5)
    """GPU nodes that have served no turn for so long are an alarm."""
    usd_per_node_hour: float | None = Field(default=None, gt=0)
    """What a GPU node costs you; None: the dashboard shows hours, not money."""


class DownloadSettings(Frozen):
    """How nodes reach packages."""

    proxy_url: HttpUrl | None = None
    """HTTP proxy of nodes and routers, for AWS APIs and packages."""
    index_url: HttpUrl | None = None
    """Python package index that is asked where the image lacks a package the kit wants.
    None: the image must hold them all."""


class ValidationSettings(Frozen):
    """What is done with a deployment after each deploy, and what it must show."""

    min_speedup: float | None = Field(default=None, gt=0, le=1000)
    """Bar: the least ratio of one-way over bidirectional TTFT, turns 2 and later. None: no bar."""
    slo_ttft_p90_ms: float | None = Field(default=None, gt=0)
    """Bar: the longest p90 of TTFT of bidirectional later turns. None: no bar."""
    scale_down: ScaleDown = "always"
    """When the nodes that a validation has started are ended; those that ran before it stay.
    `on_failure`: a good run leaves them up, and they are paid for."""
    nodes_timeout_min: int = Field(default=30, ge=5, le=720)
    """Longest wait for nodes in service; longer where capacity is scarce."""
    bench_timeout_min: int = Field(default=60, ge=5, le=720)
    """Longest run of the benchmark."""


class DeploymentSettings(Frozen):
    """`deployment.toml`."""

    name: str = Field(max_length=20, pattern=r"^[a-z](-?[a-z0-9])*$")
    """In every stack, path, tag and name. Changing it makes another deployment."""
    availability_zone: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d[a-z]$")
    """Of all nodes: EFA does not cross zones. Changing it replaces the network."""
    region: str | None = None
    """Left out: the zone's."""
    profile: str = "qwen3-32b"
    """Serving sizes and the benchmark's workload."""
    permissions_boundary_arn: str | None = Field(
        default=None, pattern=r"^arn:aws[\w-]*:iam::(\d{12}|aws):policy/"
    )
    """Put on every role."""
    tags: dict[str, str] = Field(default_factory=dict, max_length=40)
    """Put on everything that takes tags."""
    model: ModelSettings
    kv: KvTransferSpec = KvTransferSpec()
    """Left-out keys are the profile's. Changing them changes the NodeSpec parameters alone."""
    prefill_prefix_caching: bool | None = None
    """Prefix caching on P; None: the profile's. Changing it changes P's parameter alone."""
    transport: TransportSettings = TransportSettings()
    prefill: RoleSettings = RoleSettings()
    decode: RoleSettings = RoleSettings()
    operations: OperationsSettings = OperationsSettings()
    network: NetworkSettings
    image: ImageSettings = ImageSettings()
    router: RouterSettings = RouterSettings()
    downloads: DownloadSettings = DownloadSettings()
    after_deploy: Literal["validate", "scale", "nothing"] = "validate"
    """What starts by itself after a deploy that has changed something. `validate`: start the
    nodes, check them, run the benchmark, end them. `scale`: start and check them, and leave them
    up. `nothing`: `turnback validate` starts it by hand."""
    validation: ValidationSettings = ValidationSettings()

    @model_validator(mode="after")
    def _its_parts_fit(self) -> Self:
        problems = rule_problems(self.model_dump(mode="json"))
        if problems:
            raise ValueError("; ".join(f"{each.field}: {each.allowed}" for each in problems))
        return self

    @property
    def aws_region(self) -> str:
        """Region of the zone."""
        return region_of(self.availability_zone)

    @property
    def caches_on_prefill(self) -> bool:
        """Whether P keeps a prefix cache."""
        if self.prefill_prefix_caching is not None:
            return self.prefill_prefix_caching
        return load_profile(self.profile).serving.prefill_prefix_caching

    def role(self, role: Literal["prefill", "decode"]) -> RoleSettings:
        """Settings of one role."""
        return self.prefill if role == "prefill" else self.decode


def setting_paths(model: type[Frozen] = DeploymentSettings, prefix: str = "") -> dict[str, Any]:
    """Every dotted path that a settings file may hold, with its field."""
    paths: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        nested = [each for each in _models_in(field.annotation) if each is not model]
        if not nested:
            paths[prefix + name] = field
        for each in nested:
            paths |= setting_paths(each, f"{prefix}{name}.")
    return paths


def _models_in(annotation: Any) -> list[type[Frozen]]:
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        return [annotation]
    arguments = getattr(annotation, "__args__", ())
    return [model for each in arguments for model in _models_in(each)]
