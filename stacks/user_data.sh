#!/bin/bash
# First boot of a node or router: install the kit's wheel into the image's environments,
# then start. The image brings Python packages, the AWS CLI and turnback-node.service.
# The launch template sets the variables above this line.
# shellcheck disable=SC2154
set -euo pipefail

readonly kit=/opt/turnback
readonly environment_file=/etc/turnback/node.env
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "turnback: $1" >&2
  exit 1
}

write_environment() {
  install -d -m 0755 /etc/turnback
  cat >"$environment_file" <<EOF
TURNBACK_DEPLOYMENT=$TURNBACK_DEPLOYMENT
TURNBACK_ROLE=$TURNBACK_ROLE
TURNBACK_PARAMETER=$TURNBACK_PARAMETER
TURNBACK_STORE_SECRET=$TURNBACK_STORE_SECRET
AWS_REGION=$TURNBACK_REGION
AWS_DEFAULT_REGION=$TURNBACK_REGION
EOF
  if [[ -n $TURNBACK_PROXY_URL ]]; then
    # Both spellings: libraries differ in which they read.
    cat >>"$environment_file" <<EOF
HTTP_PROXY=$TURNBACK_PROXY_URL
HTTPS_PROXY=$TURNBACK_PROXY_URL
NO_PROXY=169.254.169.254,localhost,127.0.0.1
http_proxy=$TURNBACK_PROXY_URL
https_proxy=$TURNBACK_PROXY_URL
no_proxy=169.254.169.254,localhost,127.0.0.1
EOF
  fi
  set -a
  # shellcheck disable=SC1090
  source "$environment_file"
  set +a
}

install_into() { # environment, then options of pip install
  "$1/bin/python" -m pip --disable-pip-version-check install --quiet "${@:2}"
}

install_kit() {
  [[ -x $kit/venv/bin/python ]] || fail "the image has no $kit/venv"
  local wheel="$work/$TURNBACK_WHEEL_NAME"
  aws s3 cp --only-show-errors "$TURNBACK_WHEEL_URI" "$wheel" ||
    fail "the kit's wheel cannot be fetched: $TURNBACK_WHEEL_URI"
  echo "$TURNBACK_WHEEL_SHA256  $wheel" | sha256sum --check --quiet ||
    fail "the kit's wheel is not the one that was deployed"
  # What the image lacks comes from the private index, where there is one.
  if ! install_into "$kit/venv" --no-index "$wheel"; then
    [[ -n $TURNBACK_INDEX_URL ]] || fail "the image lacks packages that this kit wants"
    install_into "$kit/venv" --index-url "$TURNBACK_INDEX_URL" "$wheel" ||
      fail "the image lacks packages that this kit wants, and the index does not give them"
  fi
  if [[ $TURNBACK_ROLE != router ]]; then
    install_into "$kit/venv-engine" --no-index --no-deps "$wheel" ||
      fail "the kit cannot be installed beside the engine"
  fi
}

start_router() {
  cat >"$kit/start-router" <<'EOF'
#!/bin/bash
# One argument a line in the parameter; the store's address, with its password, as a variable.
set -euo pipefail
text=$(aws ssm get-parameter --name "$TURNBACK_PARAMETER" --query Parameter.Value --output text)
mapfile -t arguments <<<"$text"
if [[ -n $TURNBACK_STORE_SECRET ]]; then
  TURNBACK_STORE=$(aws secretsmanager get-secret-value --secret-id "$TURNBACK_STORE_SECRET" \
    --query SecretString --output text)
  export TURNBACK_STORE
fi
# What this router was started with, for `turnback rollout`; ends with the unit.
printf '{"format": 1, "role": "router", "generation": "%s", "url": "http://127.0.0.1:8000"}' \
  "$(printf '%s' "$text" | sha256sum | cut -c1-12)" >"$RUNTIME_DIRECTORY/status.json"
exec /opt/turnback/venv/bin/turnback router "${arguments[@]}"
EOF
  chmod 0755 "$kit/start-router"
  cat >/etc/systemd/system/turnback-router.service <<'EOF'
[Unit]
Description=turnback router
After=network-online.target
Wants=network-online.target

[Service]
EnvironmentFile=/etc/turnback/node.env
ExecStart=/opt/turnback/start-router
Restart=always
RestartSec=2
DynamicUser=yes
RuntimeDirectory=turnback
LimitNOFILE=65536
TimeoutStopSec=45

[Install]
WantedBy=multi-user.target
EOF
  systemctl daemon-reload
  systemctl enable --now turnback-router.service
}

write_environment
install_kit
if [[ $TURNBACK_ROLE == router ]]; then
  start_router
else
  systemctl enable --now turnback-node.service
fi
