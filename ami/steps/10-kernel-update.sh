#!/bin/bash
# Newest packages and kernel of the release; a reboot follows, and only then modules are built.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
# Background upgrades would hold apt's lock now, and change the kernel under EFA's module later.
systemctl disable --now unattended-upgrades.service apt-daily.timer apt-daily-upgrade.timer \
  2>/dev/null || true
readonly apt=(apt-get -o DPkg::Lock::Timeout=300 -q -y)
"${apt[@]}" update
"${apt[@]}" -o Dpkg::Options::=--force-confold dist-upgrade
"${apt[@]}" autoremove
