"""Whether an account can take a deployment: asked before anything is paid for."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from botocore.exceptions import BotoCoreError, ClientError

from runtime.aws.clients import client
from runtime.contract.deployment import CapacityBlock, DeploymentSettings, OnDemand, RoleSettings
from runtime.contract.instances import INSTANCE_TYPES

State = Literal["pass", "warn", "fail"]
Api = Callable[[str], Any]
"""Service name -> client."""

QUOTAS = {"p": "L-417A185B", "g": "L-DB2E81BA"}
"""First letter of a type -> quota of running on-demand vCPUs.

Source: Service Quotas: "Running On-Demand P instances", "... G and VT instances".
"""
ROLES: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")
_PRICES_REGION = "us-east-1"
"""The price list is served from there, for all regions."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one check.

    Attributes:
        check: its name.
        state: `warn` also where AWS could not be asked.
        evidence: what was seen.
        fix: what to do, where something is to be done.
    """

    check: str
    state: State
    evidence: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """For programs."""
        return asdict(self)


Check = Callable[[DeploymentSettings, Api], Iterator[Finding]]


def region_apis(settings: DeploymentSettings) -> Api:
    """Clients in the deployment's region, each made once."""

    @cache
    def api(service: str) -> Any:
        return client(service, _PRICES_REGION if service == "pricing" else settings.aws_region)

    return api


def preflight(settings: DeploymentSettings, api: Api) -> list[Finding]:
    """Run every check; one that cannot be asked is a warning and ends no other."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            findings.extend(check(settings, api))
        except ClientError as error:
            findings.append(_refused(name, error))
        except (BotoCoreError, KeyError, IndexError) as error:
            fix = "set credentials, and look at the network"
            findings.append(Finding(name, "warn", f"not asked: {error!r}", fix))
    return findings


def _refused(check: str, error: ClientError) -> Finding:
    """An id that is not there is the user's; anything else says nothing about the account."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code.endswith((".NotFound", ".Malformed", "NotFound")):
        return Finding(check, "fail", str(error), "correct the id, or the zone")
    return Finding(check, "warn", f"not asked: {error}", f"allow {error.operation_name}")


def _zone(settings: DeploymentSettings, api: Api) -> Iterator[Finding]:
    zone = settings.availability_zone
    found = api("ec2").describe_availability_zones(ZoneNames=[zone])["AvailabilityZones"][0]
    usable = found["State"] == "available"
    yield Finding("zone", "pass" if usable else "fail", f"{zone} is {found['State']}")


def _offers(settings: DeploymentSettings, api: Api) -> Iterator[Finding]:
    zone = settings.availability_zone
    wanted = sorted({settings.role(role).instance_type for role in ROLES})
    wanted.append(settings.router.instance_type)
    filters = [
        {"Name": "instance-type", "Values": wanted},
        {"Name": "location", "Values": [zone]},
    ]
    reply = api("ec2").describe_instance_type_offerings(
        LocationType="availability-zone", Filters=filters
    )
    offered = {each["InstanceType"] for each in reply["InstanceTypeOfferings"]}
    for name in wanted:
        if name in offered:
            yield Finding("offer", "pass", f"{name} is offered in {zone}")
        else:
            fix = "give another availability_zone or instance_type"
            yield Finding("offer", "fail", f"{name} is not offered in {zone}", fix)


def _quota(settings: DeploymentSettings, api: Api) -> Iterator[Finding]:
    for family, code in QUOTAS.items():
        roles = [
            settings.role(role)
            for role in ROLES
            if settings.role(role).instance_type.startswith(family)
        ]
        if not roles:
            continue
        wanted = sum(INSTANCE_TYPES[each.instance_type].vcpus * each.count for each in roles)
        quota = api("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)
        most = int(quota["Quota"]["Value"])
        running = _running_vcpus(api("ec2"), family)
        told = f"{wanted} vCPUs wanted, {running} running, quota {most} ({code})"
        if wanted + running <= most:
            yield Finding("quota", "pass", told)
        else:
            # Reservations and blocks may be counted otherwise; on-demand launches fail.
            on_demand = any(isinstance(each.capacity, OnDemand) for each in roles)
            fix = f"raise it to {wanted + running} or more in Service Quotas"
            yield Finding("quota", "fail" if on_demand else "warn", told, fix)


def _running_vcpus(ec2: Any, family: str) -> int:
    filters = [
        {"Name": "instance-type", "Values": [f"{family}*"]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    return sum(
        instance["CpuOptions"]["CoreCount"] * instance["CpuOptions"]["ThreadsPerCore"]
        for page in ec2.get_paginator("describe_instances").paginate(Filters=filters)
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    )


def _reservations(settings: DeploymentSettings, api: Api) -> Iterator[Finding]:
    wanted: dict[str, list[RoleSettings]] = {}
    for role in ROLES:
        nodes = settings.role(role)
        if not isinstance(nodes.capacity, OnDemand):
            wanted.setdefault(nodes.capacity.capacity_reservation_id, []).append(nodes)
    for reservation_id, roles in wanted.items():
        reply = api("ec2").describe_capacity_reservations(CapacityReservationIds=[reservation_id])
        found = reply["CapacityReservations"][0]
        problems = [*_mismatches(found, roles, settings.availability_zone)]
        if problems:
            fix = "correct the settings, or give another capacity_reservation_id"
            told = f"{reservation_id}: {'; '.join(problems)}"
            yield Finding("reservation", "fail", told, fix)
        elif found["State"] != "active":
            told = f"{reservation_id} is {found['State']}, nothing launches from it now"
            yield Finding("reservation", "warn", told, "deploy now, scale up when it is active")
        else:
            told = f"{reservation_id} is active, {found['AvailableInstanceCount']} free"
            yield Finding("reservation", "pass", told)


def _mismatches(found: Any, roles: list[RoleSettings], zone: str) -> Iterator[str]:
    """What will never launch from a reservation."""
    count = sum(each.count for each in roles)
    if found["State"] in ("expired", "cancelled", "failed", "payment-failed", "unsupported"):
        yield f"it is {found['State']}"
    if found["AvailabilityZone"] != zone:
        yield f"it is in {found['AvailabilityZone']}, availability_zone is {zone}"
    for each in roles:
        if found["InstanceType"] != each.instance_type:
            yield f"it holds {found['InstanceType']}, instance_type is {each.instance_type}"
        plan, end = each.capacity, found.get("EndDate")
        if isinstance(plan, CapacityBlock) and end is not None and end != plan.ends_at:
            yield f"it ends at {end.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}, not at ends_at"
        if isinstance(plan, CapacityBlock) and plan.scales_in_at <= datetime.now(UTC):
            yield f"the scale-in at {plan.scales_in_at:%Y-%m-%dT%H:%M:%SZ} is past"
    if found["TotalInstanceCount"] < count:
        yield f"it holds {found['TotalInstanceCount']} instances, {count} are wanted"


def _images(settings: DeploymentSettings, api: Api) -> Iterator[Finding]:
    ids = sorted({settings.image.ami_id, settings.image.router_ami_id or settings.image.ami_id})
    for image in api("ec2").describe_images(ImageIds=ids)["Images"]:
        told = f"{image['ImageId']} is {image['State']}, {image['Architecture']}"
        good = image["State"] == "available" and image["Architecture"] == "x86_64"
        fix = "" if good else "give an available x86_64 image"
        yield Finding("image", "pass" if good else "fail", told, fix)


def _addresses(settings: DeploymentSettings, api: Api) -> Iterator[Finding]:
    """Of an imported subnet; one that the kit makes has half of its VPC."""
    if settings.network.kind != "imported":
        return
    wanted = settings.prefill.count + settings.decode.count + settings.router.replicas + 2
    subnet = api("ec2").describe_subnets(SubnetIds=[settings.network.subnet_id])["Subnets"][0]
    free, zone = subnet["AvailableIpAddressCount"], subnet["AvailabilityZone"]
    told = f"{settings.network.subnet_id} in {zone}: {free} addresses free, {wanted} wanted"
    if zone != settings.availability_zone:
        fix = f"give a subnet in {settings.availability_zone}"
    else:
        fix = "" if free >= wanted else "give a larger subnet"
    yield Finding("addresses", "fail" if fix else "pass", told, fix)


def _supportability(settings: DeploymentSettings, api: Api) -> Iterator[Finding]:
    """AWS's own guess for on-demand launches, where the account may ask for it."""
    ec2, zone = api("ec2"), settings.availability_zone
    for role in ROLES:
        nodes = settings.role(role)
        if not isinstance(nodes.capacity, OnDemand):
            continue
        found = ec2.describe_availability_zones(ZoneNames=[zone])["AvailabilityZones"][0]
        reply = ec2.get_capacity_manager_supportability_scores(
            MarketType="on-demand",
            CapacityAmount=nodes.count,
            CapacityUnit="instances",
            CapacityAvailabilityZoneIds=[found["ZoneId"]],
            InstanceTypes=[nodes.instance_type],
        )
        score = reply["AggregateScore"]
        told = f"{nodes.count} x {nodes.instance_type} on demand in {zone}: {score}"
        good = score in ("high", "medium")
        fix = "" if good else "buy a Capacity Block or make a reservation"
        yield Finding("supportability", "pass" if good else "warn", told, fix)


def _price(settings: DeploymentSettings, api: Api) -> Iterator[Finding]:
    """USD per hour on demand; blocks are paid up front, reservations in any case."""
    total = 0.0
    for role in ROLES:
        nodes = settings.role(role)
        total += nodes.count * _usd_per_h(api("pricing"), nodes.instance_type, settings.aws_region)
    yield Finding("price", "pass", f"{total:.2f} USD an hour with all GPU nodes up, on demand")


def _usd_per_h(pricing: Any, instance_type: str, region: str) -> float:
    wanted = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()
    ]
    reply = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters, MaxResults=1)
    (term,) = json.loads(reply["PriceList"][0])["terms"]["OnDemand"].values()
    (dimension,) = term["priceDimensions"].values()
    return float(dimension["pricePerUnit"]["USD"])


CHECKS: dict[str, Check] = {
    "zone": _zone,
    "offer": _offers,
    "quota": _quota,
    "reservation": _reservations,
    "image": _images,
    "addresses": _addresses,
    "supportability": _supportability,
    "price": _price,
}
