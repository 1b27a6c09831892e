"""SCAFFOLD in the contract tests."""

SILENT = {
    "momentum": "only 0 is allowed",
    "optimiser": "only sgd is allowed",
    "moments": "plain steps remember nothing",
}
