"""FedRep in the contract tests."""

PARAMETERS = {"head_epochs": 2}
OTHER = {"head": [], "weights": "size"}
