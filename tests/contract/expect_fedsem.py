"""How FedSem is run in the contract tests."""

PARAMETERS = {"clusters": 2}
OTHER = {"clusters": 3}
