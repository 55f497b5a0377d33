#!/bin/bash
# What NIXL's wheel leaves to the system: hwloc, numa, and libfabric from EFA's folder.
set -euo pipefail
# shellcheck disable=SC1091
source "$(dirname "$0")/versions.env"
export DEBIAN_FRONTEND=noninteractive
apt-get -o DPkg::Lock::Timeout=300 -q -y install --no-install-recommends \
  "$HWLOC_PACKAGE" libnuma1
# 000: before every other folder, so that no other libfabric comes first.
echo /opt/amazon/efa/lib >/etc/ld.so.conf.d/000-turnback-efa.conf
ldconfig
for library in libhwloc.so.15 libnuma.so.1 libfabric.so.1; do
  path=$(ldconfig -p | awk -v name="$library" '$1 == name { print $NF; exit }')
  if [[ -z $path ]]; then
    echo "libraries: the loader does not find $library" >&2
    exit 1
  fi
  if [[ $library == libfabric.so.1 && $path != /opt/amazon/efa/lib/* ]]; then
    echo "libraries: $library is $path, not EFA's" >&2
    exit 1
  fi
  echo "$library: $path"
done
