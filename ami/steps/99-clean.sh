#!/bin/bash
# Downloads of the build do not stay. Keys, logs and ids are removed by Image Builder itself.
set -euo pipefail
apt-get clean
rm -rf /var/lib/apt/lists/* /root/.cache
