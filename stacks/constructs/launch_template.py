"""The only launch template: what an instance is made of."""

from collections.abc import Mapping, Sequence

from aws_cdk import CfnTag, Fn
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from runtime.contract.deployment import CapacityBlock, CapacityPlan, OnDemand, Reservation
from runtime.contract.instances import INSTANCE_TYPES
from stacks.constructs.network_interfaces import NetworkInterface, interface_problems
from stacks.constructs.user_data import MOST_BYTES

Template = ec2.CfnLaunchTemplate
ROOT_DEVICE = "/dev/sda1"
"""Of Ubuntu images."""
_TAGGED = ("instance", "volume", "network-interface")


class LaunchTemplate(Construct):
    """An L1 template: the L2 has no network interfaces, market or reservation.

    Args:
        name: of the template; changing it replaces the template.
        image_id: AMI.
        instance_type: EC2's name.
        interfaces: in the order of their places.
        address_group: security group of the interface that has an address.
        efa_group: security group of EFA interfaces.
        user_data: script, under 16 KB.
        role: of the instance.
        root_volume_gib: encrypted, deleted with the instance.
        tags: of instances, volumes and interfaces.
        capacity: where instances come from; None: on demand, placed anywhere.
        placement_group: of an on-demand role.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        image_id: str,
        instance_type: str,
        interfaces: Sequence[NetworkInterface],
        address_group: ec2.ISecurityGroup,
        efa_group: ec2.ISecurityGroup,
        user_data: str,
        role: iam.IRole,
        root_volume_gib: int,
        tags: Mapping[str, str],
        capacity: CapacityPlan | None = None,
        placement_group: str | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        _check(name, instance_type, interfaces, user_data)
        profile = iam.CfnInstanceProfile(self, "Profile", roles=[role.role_name])
        self.template = Template(
            self,
            "Template",
            launch_template_name=name,
            tag_specifications=[_template_tags(tags)],
            launch_template_data=Template.LaunchTemplateDataProperty(
                image_id=image_id,
                instance_type=instance_type,
                iam_instance_profile=Template.IamInstanceProfileProperty(arn=profile.attr_arn),
                user_data=Fn.base64(user_data),
                network_interfaces=[
                    _interface(each, address_group, efa_group) for each in interfaces
                ],
                block_device_mappings=[_root_volume(root_volume_gib)],
                # Tokens only, and not one hop further: no container needs the role.
                metadata_options=Template.MetadataOptionsProperty(
                    http_tokens="required", http_put_response_hop_limit=1
                ),
                monitoring=Template.MonitoringProperty(enabled=True),
                tag_specifications=[
                    Template.TagSpecificationProperty(resource_type=kind, tags=_cfn_tags(tags))
                    for kind in _TAGGED
                ],
                placement=_placement(capacity, placement_group),
                instance_market_options=_market(capacity),
                capacity_reservation_specification=_reservation(capacity),
            ),
        )


def _template_tags(tags: Mapping[str, str]) -> Template.LaunchTemplateTagSpecificationProperty:
    return Template.LaunchTemplateTagSpecificationProperty(
        resource_type="launch-template", tags=_cfn_tags(tags)
    )


def _check(
    name: str, instance_type: str, interfaces: Sequence[NetworkInterface], user_data: str
) -> None:
    """Refuse what CloudFormation would take and EC2 would not."""
    if len(user_data.encode()) > MOST_BYTES:
        raise ValueError(f"{name}: user data has {len(user_data)} bytes, EC2 takes {MOST_BYTES}")
    row = INSTANCE_TYPES.get(instance_type)
    if row is not None and (problems := interface_problems(row, interfaces)):
        raise ValueError(f"{name}: EC2 would refuse this launch: {'; '.join(problems)}")


def _cfn_tags(tags: Mapping[str, str]) -> list[CfnTag]:
    return [CfnTag(key=key, value=value) for key, value in sorted(tags.items())]


def _interface(
    interface: NetworkInterface,
    address_group: ec2.ISecurityGroup,
    efa_group: ec2.ISecurityGroup,
) -> ec2.CfnLaunchTemplate.NetworkInterfaceProperty:
    """No subnet: the Auto Scaling group's is used. No address of any kind on efa-only."""
    has_address = interface.interface_type == "interface"
    group = address_group if has_address else efa_group
    return Template.NetworkInterfaceProperty(
        network_card_index=interface.network_card_index,
        device_index=interface.device_index,
        interface_type=interface.interface_type,
        groups=[group.security_group_id],
        associate_public_ip_address=False if has_address else None,
        delete_on_termination=True,
    )


def _root_volume(size_gib: int) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    return Template.BlockDeviceMappingProperty(
        device_name=ROOT_DEVICE,
        ebs=Template.EbsProperty(
            encrypted=True, volume_type="gp3", volume_size=size_gib, delete_on_termination=True
        ),
    )


def _placement(
    capacity: CapacityPlan | None, own_group: str | None
) -> ec2.CfnLaunchTemplate.PlacementProperty | None:
    """A Capacity Block has its place; a reservation's group is the one it was made in."""
    match capacity:
        case OnDemand() if own_group:
            return Template.PlacementProperty(group_name=own_group)
        case Reservation(placement_group=str() as group):
            return Template.PlacementProperty(group_name=group)
    return None


def _market(
    capacity: CapacityPlan | None,
) -> ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty | None:
    if isinstance(capacity, CapacityBlock):
        return Template.InstanceMarketOptionsProperty(market_type="capacity-block")
    return None


def _reservation(
    capacity: CapacityPlan | None,
) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty | None:
    if not isinstance(capacity, Reservation | CapacityBlock):
        return None
    return Template.CapacityReservationSpecificationProperty(
        capacity_reservation_target=Template.CapacityReservationTargetProperty(
            capacity_reservation_id=capacity.capacity_reservation_id
        )
    )
