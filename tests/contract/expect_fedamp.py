"""FedAMP in the contract tests."""

OTHER = {"sigma": 3.0}
