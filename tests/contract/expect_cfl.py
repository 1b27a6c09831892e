"""How CFL is run in the contract tests: thresholds at which the toy clients split in round 2."""

PARAMETERS = {"epsilon1": 10.0, "epsilon2": 0.001, "after": 1}
OTHER = {"epsilon1": 0.0, "epsilon2": 100.0, "after": 5}
