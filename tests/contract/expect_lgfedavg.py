"""LG-FedAvg in the contract tests."""

OTHER = {"head": []}
