#!/bin/bash
# Locked memory without limit, and 2 MiB pages for EFA's registrations.
set -euo pipefail
here=$(dirname "$0")
install -D -m 0644 "$here/../files/limits.conf" /etc/security/limits.d/90-turnback.conf
install -D -m 0644 "$here/../files/systemd-limits.conf" /etc/systemd/system.conf.d/90-turnback.conf
install -D -m 0644 "$here/../files/sysctl.conf" /etc/sysctl.d/90-turnback.conf
