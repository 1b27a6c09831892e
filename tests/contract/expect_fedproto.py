"""FedProto in the contract tests."""

OTHER = {"predict": "head"}
SILENT = {"features": "other layers of the toy network give the same features, or are refused"}
