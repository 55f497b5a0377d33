#!/bin/bash
# /opt/turnback/venv-engine: vLLM, NIXL and what they need.
set -euo pipefail
here=$(dirname "$0")
# shellcheck disable=SC1091
source "$here/versions.env"
"$here/environment.sh" /opt/turnback/venv-engine "$here/../locks/engine-gpu.lock"
for wanted in "vllm==$ENGINE_VLLM" "nixl==$NIXL_VERSION" "$NIXL_PACKAGE==$NIXL_VERSION"; do
  name=${wanted%==*} version=${wanted#*==}
  found=$(/opt/turnback/venv-engine/bin/python -c \
    'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$name")
  if [[ $found != "$version" ]]; then
    echo "engine: $name $found, ami/versions.toml says $version" >&2
    exit 1
  fi
done
