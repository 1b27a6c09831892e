"""How dFedU is run in the contract tests."""

OTHER = {"local_unit": "step"}
