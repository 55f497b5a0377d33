#!/bin/bash
# The kernel that runs is the newest one installed, and stays.
set -euo pipefail
running=$(uname -r)
newest=$(find /lib/modules -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -V | tail -n 1)
if [[ $running != "$newest" ]]; then
  echo "kernel: $running runs, $newest is installed: reboot first" >&2
  exit 1
fi
mapfile -t packages < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' \
  'linux-image-*' 'linux-headers-*' 'linux-modules-*' linux-aws 2>/dev/null |
  awk '$2 == "installed" { print $1 }')
if [[ ${#packages[@]} -eq 0 ]]; then
  echo "kernel: no package of it is installed" >&2
  exit 1
fi
apt-mark hold "${packages[@]}"
