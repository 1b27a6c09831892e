"""SCAFFOLD in the contract tests."""

SILENT = {"momentum": "only 0 is allowed"}
