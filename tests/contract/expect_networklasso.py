"""How networklasso is run in the contract tests."""

SILENT = {"robust": "refused: its coupling has no weights to guard"}
