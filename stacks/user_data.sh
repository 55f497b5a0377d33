#!/bin/bash
# First boot of a node or router. It leaves turnback-kit.service behind, which installs the
# kit's wheel into the image's environments and starts what the machine is for; until that has
# ended well nothing of it runs, and a failed try is made again.
# The image brings Python packages, the AWS CLI and turnback-node.service.
# The launch template sets the variables above this line.
# shellcheck disable=SC2154
set -euo pipefail

readonly kit=/opt/turnback
readonly stamp=/opt/turnback/kit.sha256 # of the wheel that is wholly installed
readonly state=/var/lib/turnback
readonly environment_file=/etc/turnback/node.env

fail() { # what, got, allowed, fix: one line in the journal, and boot.json for doctor
  echo "turnback: kit failed: $1; got: $2; allowed: $3; fix: $4" >&2
  install -d -m 0755 "$state"
  printf '{"format":1,"state":"failed","step":"kit","since_unix_s":%s,"what":"%s","got":"%s","allowed":"%s","fix":"%s"}' \
    "$(date +%s)" "$1" "$2" "$3" "$4" >"$state/boot.json"
  exit 3
}

write_environment() {
  install -d -m 0755 /etc/turnback
  cat >"$environment_file" <<EOT
TURNBACK_DEPLOYMENT=$TURNBACK_DEPLOYMENT
TURNBACK_ROLE=$TURNBACK_ROLE
TURNBACK_PARAMETER=$TURNBACK_PARAMETER
TURNBACK_STORE_SECRET=$TURNBACK_STORE_SECRET
TURNBACK_WHEEL_SHA256=$TURNBACK_WHEEL_SHA256
AWS_REGION=$TURNBACK_REGION
AWS_DEFAULT_REGION=$TURNBACK_REGION
EOT
  if [[ -n $TURNBACK_PROXY_URL ]]; then
    # Both spellings: libraries differ in which they read.
    cat >>"$environment_file" <<EOT
HTTP_PROXY=$TURNBACK_PROXY_URL
HTTPS_PROXY=$TURNBACK_PROXY_URL
NO_PROXY=169.254.169.254,localhost,127.0.0.1
http_proxy=$TURNBACK_PROXY_URL
https_proxy=$TURNBACK_PROXY_URL
no_proxy=169.254.169.254,localhost,127.0.0.1
EOT
  fi
}

leave_unit() {
  install -D -m 0755 "$0" "$kit/first-boot"
  cat >/etc/systemd/system/turnback-kit.service <<'EOT'
[Unit]
Description=turnback kit, then what this machine is for
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=3600
StartLimitBurst=10

[Service]
Type=oneshot
RemainAfterExit=yes
EnvironmentFile=/etc/turnback/node.env
ExecStart=/opt/turnback/first-boot kit
Restart=on-failure
RestartSec=15

[Install]
WantedBy=multi-user.target
EOT
  # Whoever starts the image's unit by hand meets half a kit no more than the machine does.
  install -d -m 0755 /etc/systemd/system/turnback-node.service.d
  printf '[Unit]\nConditionPathExists=%s\n' "$stamp" \
    >/etc/systemd/system/turnback-node.service.d/kit.conf
  systemctl daemon-reload
  systemctl enable turnback-kit.service
  systemctl start --no-block turnback-kit.service
}

install_into() { # environment, then options of pip install
  "$1/bin/python" -m pip --disable-pip-version-check install --quiet "${@:2}"
}

install_kit() {
  [[ $(cat "$stamp" 2>/dev/null) != "$TURNBACK_WHEEL_SHA256" ]] || return 0
  [[ -x $kit/venv/bin/python ]] ||
    fail "the image has no environment for the kit" "no $kit/venv" "an image of this kit" \
      "turnback image build, then image.ami_id"
  rm -f "$stamp"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  local wheel="$work/$TURNBACK_WHEEL_NAME"
  aws s3 cp --only-show-errors "$TURNBACK_WHEEL_URI" "$wheel" ||
    fail "the kit's wheel cannot be fetched" "$TURNBACK_WHEEL_URI" "a way to S3, and leave to read it" \
      "look at route, endpoint, proxy and role; it is tried again"
  echo "$TURNBACK_WHEEL_SHA256  $wheel" | sha256sum --check --quiet ||
    fail "the kit's wheel is not the one that was deployed" \
      "sha256 $(sha256sum "$wheel" | cut -c1-64)" "$TURNBACK_WHEEL_SHA256" \
      "deploy again, which uploads it anew"
  # Forced: of an install that was cut off, pip believes that it is there.
  install_into "$kit/venv" --no-index --no-deps --force-reinstall "$wheel" ||
    fail "the kit cannot be installed" "pip install into $kit/venv" "room on the disk" \
      "read journalctl --unit turnback-kit"
  # What the image lacks comes from the private index, where there is one, by the hashes of the
  # lock in the wheel.
  if ! install_into "$kit/venv" --no-index "$wheel"; then
    [[ -n $TURNBACK_INDEX_URL ]] ||
      fail "the image lacks packages that this kit wants" "no downloads.index_url" \
        "an image with all of them, or an index" "turnback image build, then image.ami_id"
    "$kit/venv/bin/python" -m zipfile -e "$wheel" "$work/wheel" ||
      fail "the kit's wheel cannot be unpacked" "$work/wheel" "room in /tmp" "look at df /tmp"
    install_into "$kit/venv" --index-url "$TURNBACK_INDEX_URL" --only-binary :all: --no-deps \
      --require-hashes -r "$work/wheel/runtime/node.lock" ||
      fail "the image lacks packages that this kit wants" \
        "the index does not give them, or others than the kit's lock" \
        "an image with all of them" "turnback image build, then image.ami_id"
  fi
  if [[ $TURNBACK_ROLE != router ]]; then
    install_into "$kit/venv-engine" --no-index --no-deps --force-reinstall "$wheel" ||
      fail "the kit cannot be installed beside the engine" "pip install into $kit/venv-engine" \
        "an image of this kit with room on its disk" "read journalctl --unit turnback-kit"
  fi
  sync -f "$kit" # files before the stamp, also when the machine dies now
  echo "$TURNBACK_WHEEL_SHA256" >"$stamp.part"
  mv "$stamp.part" "$stamp"
}

prepare_router() {
  cat >"$kit/start-router" <<'EOT'
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
EOT
  chmod 0755 "$kit/start-router"
  cat >/etc/systemd/system/turnback-router.service <<'EOT'
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
EOT
  systemctl daemon-reload
}

if [[ ${1-} != kit ]]; then
  write_environment
  leave_unit
  exit 0
fi
install_kit
unit=turnback-node.service
if [[ $TURNBACK_ROLE == router ]]; then
  prepare_router
  unit=turnback-router.service
fi
# Its start takes as long as its model: this unit does not wait for it.
systemctl start --no-block "$unit"
