"""APFL in the contract tests."""

OTHER = {"weights": "size"}
