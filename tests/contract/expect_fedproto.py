"""FedProto in the contract tests."""

OTHER = {"predict": "head"}
SILENT = {
    "robust": "refused: models stay at home",
    "features": "other layers of the toy network give the same features, or are refused",
}
