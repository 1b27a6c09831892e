"""How Global is run in the contract tests: its samples must be in one place."""

TOGETHER = "pools the samples of all clients in one process"
