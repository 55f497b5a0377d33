#!/bin/bash
# /etc/turnback/image.json: what boot and doctor believe of this image.
#   90-image-file.sh node|router
set -euo pipefail
readonly kind=$1
# shellcheck disable=SC1091
source "$(dirname "$0")/versions.env"

python=$(/opt/turnback/venv/bin/python -c 'import platform; print(platform.python_version())')
fields=("kind=$kind" "built_at=$(date -u +%FT%TZ)" "python=$python")
if [[ $kind == node ]]; then
  version_of() { # package of the engine's environment
    /opt/turnback/venv-engine/bin/python -c \
      'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1"
  }
  engine=$(version_of vllm)
  nixl=$(version_of nixl)
  libfabric=$(/opt/amazon/efa/bin/fi_info --version | awk '$1 == "libfabric:" { print $2 }')
  rdma_core=$(dpkg-query -W -f '${Version}' libibverbs1)
  driver=$(modinfo -k "$(uname -r)" -F version nvidia)
  [[ $libfabric == "$EFA_LIBFABRIC" ]] || {
    echo "image.json: libfabric $libfabric, ami/versions.toml says $EFA_LIBFABRIC" >&2
    exit 1
  }
  [[ $rdma_core == "$EFA_RDMA_CORE"* ]] || {
    echo "image.json: rdma-core $rdma_core, ami/versions.toml says $EFA_RDMA_CORE" >&2
    exit 1
  }
  fields+=("engine=$engine" "nixl=$nixl" "efa_installer=$EFA_INSTALLER"
    "libfabric=$libfabric" "rdma_core=$rdma_core" "driver=$driver")
fi
install -d -m 0755 /etc/turnback
/usr/bin/python3 - "${fields[@]}" >/etc/turnback/image.json.new <<'END'
import json
import sys

print(json.dumps({"format": 1} | dict(each.split("=", 1) for each in sys.argv[1:]), indent=2))
END
mv /etc/turnback/image.json.new /etc/turnback/image.json
