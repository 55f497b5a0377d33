#!/bin/bash
# /opt/turnback/venv-engine: vLLM, NIXL and what they need.
set -euo pipefail
here=$(dirname "$0")
# shellcheck disable=SC1091
source "$here/versions.env"
readonly environment=/opt/turnback/venv-engine

fail() {
  echo "engine: $1" >&2
  exit 1
}

"$here/environment.sh" "$environment" "$here/../locks/engine-gpu.lock"
for wanted in "vllm==$ENGINE_VLLM" "nixl==$NIXL_VERSION" "$NIXL_PACKAGE==$NIXL_VERSION"; do
  name=${wanted%==*} version=${wanted#*==}
  found=$("$environment/bin/python" -c \
    'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$name")
  [[ $found == "$version" ]] || fail "$name $found, ami/versions.toml says $version"
done

# NIXL's plugins want CUDA's runtime of the loader, which knows no virtual environments. Last:
# where the system has one, that comes first.
runtime=$(find "$environment" -name "libcudart.so.${NVIDIA_CUDA%%.*}" -print -quit)
[[ -n $runtime ]] || fail "the environment has no libcudart.so.${NVIDIA_CUDA%%.*}"
dirname "$runtime" >/etc/ld.so.conf.d/990-turnback-cuda.conf
ldconfig
readonly module=${NIXL_PACKAGE//-/_}
plugin=$(find "$environment" -path "*/$module.libs/nixl/libplugin_LIBFABRIC.so" -print -quit)
[[ -n $plugin ]] || fail "$NIXL_PACKAGE $NIXL_VERSION has no plugin for libfabric"
# NIXL has its own libraries loaded before it loads a plugin.
packages=${plugin%"/$module.libs/"*}
missing=$(LD_LIBRARY_PATH="$packages/.$module.mesonpy.libs:$packages/$module.libs" ldd "$plugin" |
  awk '/not found/ { print $1 }')
[[ -z $missing ]] || fail "NIXL's plugin for libfabric would not load without: ${missing//$'\n'/ }"
