#!/bin/bash
# systemd units of a GPU node: instance store, EFA, engine, CloudWatch agent.
set -euo pipefail
here=$(dirname "$0")
export DEBIAN_FRONTEND=noninteractive
apt-get -o DPkg::Lock::Timeout=300 -q -y install --no-install-recommends mdadm xfsprogs
for script in instance-store wait-efa; do
  install -D -m 0755 "$here/../files/$script" "/opt/turnback/libexec/$script"
done
install -D -m 0644 "$here/../files/cloudwatch-node.json" /opt/turnback/etc/cloudwatch.json
for unit in "$here"/../units/*.service; do
  install -D -m 0644 "$unit" "/etc/systemd/system/$(basename "$unit")"
done
# The base image stripes the same disks for itself, at another place.
systemctl mask dlami-nvme.service
systemctl enable turnback-instance-store.service turnback-efa.service turnback-cloudwatch.service
# turnback-node.service is started by the first boot, once there is a kit and a role.
systemctl disable turnback-node.service 2>/dev/null || true
