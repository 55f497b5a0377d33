#!/bin/bash
# /opt/turnback/venv: third-party packages of the kit. Its own wheel comes at boot.
set -euo pipefail
here=$(dirname "$0")
"$here/environment.sh" /opt/turnback/venv "$here/../locks/node.lock"
