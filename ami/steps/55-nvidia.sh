#!/bin/bash
# What the base image must bring: an open driver that is new enough, and gdrcopy.
set -euo pipefail
# shellcheck disable=SC1091
source "$(dirname "$0")/versions.env"

fail() {
  echo "NVIDIA: $1" >&2
  exit 1
}

is_at_least() { # found, wanted
  [[ $(printf '%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]
}

driver=$(modinfo -k "$(uname -r)" -F version nvidia) || fail "no driver for $(uname -r)"
is_at_least "$driver" "$NVIDIA_DRIVER_AT_LEAST" ||
  fail "driver $driver, CUDA $NVIDIA_CUDA wants $NVIDIA_DRIVER_AT_LEAST or newer"
license=$(modinfo -k "$(uname -r)" -F license nvidia)
# The proprietary driver has no DMA-BUF, which GPUDirect over EFA goes through.
[[ $license == *GPL* ]] || fail "the driver is not the open one (license: $license)"
gdrcopy=$(modinfo -k "$(uname -r)" -F version gdrdrv) || fail "no gdrcopy for $(uname -r)"
is_at_least "$gdrcopy" "$GDRCOPY_VERSION_AT_LEAST" ||
  fail "gdrcopy $gdrcopy, $GDRCOPY_VERSION_AT_LEAST or newer is expected"
echo "driver $driver, gdrcopy $gdrcopy"
