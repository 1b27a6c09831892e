"""How Global is run in the contract tests: its samples must be in one place."""

TOGETHER = "pools the samples of all clients in one process"
SILENT = {"robust": "refused: there is no coupling of rows to guard; see tests/attacks/test_defence.py"}
