"""FedDBE in the contract tests."""

SILENT = {"features": "other layers of the toy network give the same features, or are refused"}
