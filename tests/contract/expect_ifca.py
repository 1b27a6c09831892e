"""How IFCA is run in the contract tests."""

PARAMETERS = {"clusters": 2}
OTHER = {"clusters": 1, "average": "gradient", "weights": "size", "restarts": 6, "trial_rounds": 1}
WITH = {"trial_rounds": {"restarts": 6}}
