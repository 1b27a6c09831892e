"""FedBABU in the contract tests."""

OTHER = {"head": [], "tune": "head"}
