"""How MOCHA is run in the contract tests: convex models only."""

MODEL = "mlr"
SILENT = {"robust": "refused: there is no coupling of rows to guard; see tests/attacks/test_defence.py"}
