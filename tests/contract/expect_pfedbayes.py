"""pFedBayes in the contract tests: Adam's rate, and a model without batch norm."""

PARAMETERS = {"lr": 0.01, "inner_steps": 2}
MODEL = "mlp:6"
OTHER = {"optimiser": "rmsprop", "moments": "keep"}
WITH = {"momentum": {"optimiser": "sgd"}, "moments": {"momentum": 0.0}}
