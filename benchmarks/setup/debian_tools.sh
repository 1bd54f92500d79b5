#!/usr/bin/env bash
# Prometheus, promtool, Alertmanager and Chromium from Debian's packages, where they are missing.
# None of their services keeps running: the tests start their own, on free ports.
set -euo pipefail
. "$(dirname "$0")/common.sh"
only_one debian-tools

declare -A PACKAGE_OF=([prometheus]=prometheus [promtool]=prometheus
  [prometheus-alertmanager]=prometheus-alertmanager [chromium]=chromium)

missing_packages() {
  local command
  for command in "${!PACKAGE_OF[@]}"; do
    command -v "$command" >/dev/null || printf '%s\n' "${PACKAGE_OF[$command]}"
  done | sort -u
}

# Debian starts a service as its package is set up unless this file, its own switch for that, says no.
POLICY=/usr/sbin/policy-rc.d
forbid_service_starts() {
  [ -e "$POLICY" ] && return
  trap 'rm -f "$POLICY"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$POLICY"
  chmod 755 "$POLICY"
}

keep_services_off() {
  local service
  for service in prometheus prometheus-node-exporter prometheus-alertmanager; do
    [ -e "/etc/init.d/$service" ] || continue
    update-rc.d "$service" disable >/dev/null 2>&1 || true
    if [ -d /run/systemd/system ]; then systemctl mask --now "$service" >/dev/null 2>&1 || true; fi
  done
}

read -r -d '' -a packages < <(missing_packages) || true
if [ ${#packages[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || die "no apt-get here: install ${packages[*]} by hand"
  [ "$(id -u)" = 0 ] || die "not root: sudo apt-get install --no-install-recommends ${packages[*]}"
  say "installing ${packages[*]}"
  forbid_service_starts
  export DEBIAN_FRONTEND=noninteractive
  quietly apt-update apt-get -q update
  quietly apt-install apt-get -q -y --no-install-recommends install "${packages[@]}" fonts-dejavu-core
fi
[ "$(id -u)" != 0 ] || keep_services_off
for command in "${!PACKAGE_OF[@]}"; do
  command -v "$command" >/dev/null || die "$command is still missing after the installation"
done
say "ready: $(command -v prometheus promtool prometheus-alertmanager chromium | tr '\n' ' ')"
