"""How FedCedar is run in the contract tests."""

PARAMETERS = {"clusters": 3}
OTHER = {
    "clusters": 2,
    "ablation": "as1",
    "sim_on": "updates",
    "temperature": 0.01,
}
SILENT = {
    "memory": "matters only when some clients do not take part; see tests/algorithms/test_fedcedar.py",
    "period": "matters only when some clients do not take part; see tests/algorithms/test_fedcedar.py",
    "groups": "matters for `period` and the Rand index; see tests/algorithms/test_fedcedar.py",
}
