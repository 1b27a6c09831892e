"""kNN-Per in the contract tests."""

OTHER = {"neighbours": 2, "lam": 0.35, "scale": 0.1, "capacity": 3, "features": "features.1"}
