#!/bin/sh
# This site. Its data stay in this folder. PORT is for its own processes and is reached from this machine alone.
cd "$$(dirname "$$0")" || exit 1
export FLWR_HOME="$$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
fedkin deploy port 127.0.0.1 "$${PORT:-$own_port}" || exit 1
exec flower-supernode --superlink "$address:$port" --root-certificates ca.pem \
  --auth-supernode-private-key key --node-config "site=\"$$PWD/site.toml\"" --port "$${PORT:-$own_port}"
