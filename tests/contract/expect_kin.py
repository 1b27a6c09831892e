"""How Kin is run in the contract tests: three rounds, six clients."""

OTHER = {"peers": 2, "alone": 1.0, "stages": 1}
