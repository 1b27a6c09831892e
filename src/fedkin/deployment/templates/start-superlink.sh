#!/bin/sh
# The server. It holds no data. Its control API can start runs: keep the port away from those who may not (README.md).
cd "$$(dirname "$$0")" || exit 1
export FLWR_HOME="$$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
fedkin deploy port "$${HOST:-$bind}" "$${PORT:-$port}" || exit 1
# How flwr reaches this server; it wants the path of the certificate from the root.
mkdir -p ../flwr && sed "s|@folder@|$$(cd .. && pwd)|" flwr.toml > ../flwr/config.toml
exec flower-superlink --host "$${HOST:-$bind}" --port "$${PORT:-$port}" \
  --ssl-ca-certfile certificates/ca.pem --ssl-certfile certificates/server.pem --ssl-keyfile certificates/server.key \
  --enable-supernode-auth --database state.db --disable-runtime-dependency-installation
