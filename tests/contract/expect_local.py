"""How Local is run in the contract tests."""

SILENT = {"robust": "nobody else's row reaches a client"}
