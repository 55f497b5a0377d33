#!/bin/bash
# EFA's userspace and kernel module, for the kernel that 20-kernel-hold.sh has fixed.
set -euo pipefail
# shellcheck disable=SC1091
source "$(dirname "$0")/versions.env"
export DEBIAN_FRONTEND=noninteractive

fail() {
  echo "EFA: $1" >&2
  exit 1
}

is_there() {
  [[ -r /opt/amazon/efa_installed_packages && -x /opt/amazon/efa/bin/fi_info ]] &&
    grep -qF "EFA installer version: $EFA_INSTALLER" /opt/amazon/efa_installed_packages
}

install_efa() {
  [[ $EFA_SHA256 =~ ^[0-9a-f]{64}$ ]] ||
    fail "ami/versions.toml has no sha256 of $EFA_INSTALLER: nothing is installed unchecked"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  curl --fail --silent --show-error --location --retry 3 --max-time 900 \
    --output "$work/efa.tar.gz" "$EFA_URL" || fail "$EFA_URL cannot be fetched"
  echo "$EFA_SHA256  $work/efa.tar.gz" | sha256sum --check --quiet ||
    fail "$EFA_URL is not the file that was pinned"
  tar -xzf "$work/efa.tar.gz" -C "$work"
  # Ubuntu's verbs libraries beside EFA's are what makes providers of the wrong ABI load.
  verbs=$(dpkg-query -W -f '${Version}' libibverbs1 2>/dev/null || true)
  if [[ -n $verbs && $verbs != *amzn* ]]; then
    apt-get -o DPkg::Lock::Timeout=300 -q -y remove ibverbs-providers libibverbs1 rdma-core
  fi
  (cd "$work/aws-efa-installer" && ./efa_installer.sh -y) || fail "the installer failed"
}

is_there || install_efa
is_there || fail "installer $EFA_INSTALLER has left no trace of itself"
module=$(modinfo -k "$(uname -r)" -F version efa) ||
  fail "no kernel module for $(uname -r): it was built for another kernel"
[[ $module == "$EFA_KERNEL_MODULE"* ]] ||
  fail "kernel module $module, installer $EFA_INSTALLER brings $EFA_KERNEL_MODULE"
echo "EFA installer $EFA_INSTALLER, kernel module $module"
