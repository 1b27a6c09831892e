"""Per-FedAvg in the contract tests."""

OTHER = {"weights": "size"}
