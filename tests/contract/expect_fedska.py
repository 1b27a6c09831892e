"""How FedSKA is run in the contract tests."""

from __future__ import annotations

PARAMETERS = {"mask": 0.3}
OTHER = {
    "k": 1,
    "features": "features.1",
    "granularity": "client",
    "similarity": "cosine",
    "noise": "gaussian",
    "server_optimiser": "sgd",
    "mask": 0.6,
    "classifier": "received",
}
SILENT = {"server_momentum": "only 0 is allowed"}
