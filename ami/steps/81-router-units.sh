#!/bin/bash
# systemd units of a router: the CloudWatch agent; the first boot writes the router's own.
set -euo pipefail
here=$(dirname "$0")
install -D -m 0644 "$here/../files/cloudwatch-router.json" /opt/turnback/etc/cloudwatch.json
install -D -m 0644 "$here/../units/turnback-cloudwatch.service" \
  /etc/systemd/system/turnback-cloudwatch.service
systemctl enable turnback-cloudwatch.service
