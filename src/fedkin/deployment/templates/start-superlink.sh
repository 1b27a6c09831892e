#!/bin/sh
# The server. It holds no data. Its control API can start runs: keep the port away from those who may not (README.md).
cd "$$(dirname "$$0")"
export FLWR_HOME="$$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
exec flower-superlink --host "$${HOST:-$bind}" --port "$${PORT:-$port}" \
  --ssl-ca-certfile certificates/ca.pem --ssl-certfile certificates/server.pem --ssl-keyfile certificates/server.key \
  --enable-supernode-auth --database state.db --disable-runtime-dependency-installation
