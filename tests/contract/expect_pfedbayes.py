"""pFedBayes in the contract tests: Adam's rate, and a model without batch norm."""

PARAMETERS = {"lr": 0.01, "inner_steps": 2}
MODEL = "mlp:6"
SILENT = {"momentum": "only 0 is allowed: Adam has its own"}
