#!/bin/bash
# A virtual environment from a lock, by hash; half-made ones are made anew.
#   environment.sh FOLDER LOCK
set -euo pipefail
readonly folder=$1 lock=$2 python=/usr/bin/python3
# shellcheck disable=SC1091
source "$(dirname "$0")/versions.env"
export DEBIAN_FRONTEND=noninteractive
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [[ $found != "$PYTHON_VERSION" ]]; then
  echo "$folder: $python is $found, ami/versions.toml says $PYTHON_VERSION" >&2
  exit 1
fi
wanted=$("$python" --version; sha256sum <"$lock")
if [[ -r $folder/.turnback-lock && $(<"$folder/.turnback-lock") == "$wanted" ]]; then
  echo "$folder: up to date"
  exit 0
fi
"$python" -c 'import ensurepip' 2>/dev/null ||
  apt-get -o DPkg::Lock::Timeout=300 -q -y install --no-install-recommends python3-venv
rm -rf "$folder"
install -d "$(dirname "$folder")"
"$python" -m venv "$folder"
"$folder/bin/python" -m pip --disable-pip-version-check --quiet install \
  --only-binary :all: --no-deps --require-hashes -r "$lock"
"$folder/bin/python" -m pip --disable-pip-version-check check
echo "$wanted" >"$folder/.turnback-lock"
