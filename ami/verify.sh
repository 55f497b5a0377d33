#!/bin/bash
# Whether this image may become one: the doctor's image stage, by the kit that is deployed.
#   verify.sh WHEEL
# The kit is put aside of the image's environment: the image holds none.
set -euo pipefail
readonly wheel=$1 python=/opt/turnback/venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[[ -x $python ]] || {
  echo "verify: $python is not there" >&2
  exit 1
}
"$python" -m pip --disable-pip-version-check --quiet install \
  --no-index --no-deps --target "$work/kit" "$wheel"
cd "$work"
PYTHONPATH="$work/kit" "$python" -m runtime.entry doctor --stage image
