"""FedALA in the contract tests."""

OTHER = {"head": [], "share": 0.3}
