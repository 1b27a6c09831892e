"""AFL in the contract tests: a step of λ that is felt within three rounds."""

PARAMETERS = {"gamma_lambda": 0.1}
