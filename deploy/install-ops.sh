#!/usr/bin/env bash
# Installs what `make test-ops` and `make ops-demo` need. Loud when something cannot be had.
#   deploy/install-ops.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: deploy/install-ops.sh VENV}
missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need prometheus prometheus
need promtool prometheus
need prometheus-alertmanager prometheus-alertmanager
need amtool prometheus-alertmanager
need systemd-analyze systemd
need node nodejs
need npm npm
need chromium chromium
if ((${#missing[@]})); then
  echo "installing from Debian: ${missing[*]}" >&2
  if [[ $(id -u) != 0 ]]; then
    echo "missing programs, and not root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  # The packages would start servers of their own; the tests start theirs, on loopback, and end them.
  policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
for program in prometheus promtool prometheus-alertmanager amtool systemd-analyze node npm chromium; do
  command -v "$program" >/dev/null || { echo "$program could not be installed" >&2; exit 1; }
done
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet -c constraints.txt -c deploy/constraints-ops.txt \
  -e '.[proxy,loadgen,sim,ops,dev]'
npm ci --prefix deploy/crd --ignore-scripts --no-audit --no-fund --loglevel=error
echo "ops tools installed: $(promtool --version 2>&1 | head -1 | cut -d'(' -f1), $("$venv/bin/kubectl" version --client 2>/dev/null | head -1)" >&2
