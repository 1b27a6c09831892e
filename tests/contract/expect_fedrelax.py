"""How FedRelax is run in the contract tests."""

from __future__ import annotations

PARAMETERS = {"alpha": 0.5, "public_size": 4}
OTHER = {
    "inner_steps": 3,
    "moments": "reset",
    "discrepancy": "mse",
    "weight": "alpha",
    "public": "uniform",
    "public_size": 2,
    "smoothing": 0.5,
    "tolerance": 0.99,
}
SILENT = {
    "robust": "refused: there is no coupling of rows to guard; see tests/attacks/test_defence.py",
    "batch_size": "every step uses all samples of a client, as in the paper",
    "update": "exact updates exist for linear regression models; see tests/algorithms/test_fedrelax.py",
    "distil": "acts on trees; see tests/algorithms/test_fedrelax.py",
    "distil_weight": "acts on trees; see tests/algorithms/test_fedrelax.py",
    "distil_from": "acts on trees; see tests/algorithms/test_fedrelax.py",
    "sleepers": "matters only when some clients do not take part; see tests/algorithms/test_fedrelax.py",
    "trees": "acts on trees; see tests/algorithms/test_fedrelax.py",
    "unweighted": "acts on estimators without sample_weight; see tests/algorithms/test_fedrelax.py",
}
