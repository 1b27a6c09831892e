"""FedPer in the contract tests."""

OTHER = {"head": []}
