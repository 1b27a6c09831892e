"""How FedU is run in the contract tests."""

OTHER = {"local_unit": "step", "hub": 0.5}
SILENT = {"neighbours": "matters only when some clients do not take part; tests/algorithms/test_fedu.py"}
