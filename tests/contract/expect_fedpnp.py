"""How FedPnP is run in the contract tests."""

from __future__ import annotations

PARAMETERS = {"eta": 0.1}  # else the schedule follows the number of rounds, which a resumed run changes
OTHER = {
    "denoiser": "heat",
    "beta2": 0.5,
    "schedule": "constant",
    "tau": 3,
    "fidelity": "none",
    "bn_buffers": "average",
    "graph_every": 1,
    "delta": 2,
}
# In three rounds the strength has not come down to β; the rank parameters belong to the denoiser that keeps modes.
WITH = {
    "beta": {"schedule": "constant"},
    "beta2": {"schedule": "constant"},
    "tau": {"denoiser": "hard", "tau": 2, "schedule": "constant"},
    "delta": {"denoiser": "hard", "tau": 3},
}
