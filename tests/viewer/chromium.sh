#!/usr/bin/env bash
# Debian's Chromium and a font, for the tests that use the viewer as a person does. Run as root; idempotent.
set -euo pipefail
command -v chromium >/dev/null && exit
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
chromium --version
