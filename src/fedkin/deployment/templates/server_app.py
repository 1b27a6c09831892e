"""The server side: fedkin's own."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkin.deployment.server import serve

app = ServerApp()


@app.main()
def run(grid: Grid, context: Context) -> None:
    serve(grid, context)
