"""How FedFomo is run in the contract tests: fewer candidates than clients, so that likes and chance decide."""

PARAMETERS = {"peers": 2}
OTHER = {"peers": 1, "epsilon": 1.0}
