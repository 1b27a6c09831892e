"""How MOCHA is run in the contract tests: convex models only."""

MODEL = "mlr"
