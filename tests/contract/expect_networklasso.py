"""How networklasso is run in the contract tests."""

OTHER = {"update": "primal-dual"}
SILENT = {
    "robust": "refused: its coupling has no weights to guard",
    "primal": "balances primal and dual steps, which only update='primal-dual' takes",
}
