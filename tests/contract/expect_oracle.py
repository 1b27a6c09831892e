"""Oracle in the contract tests: the federation tells its true clusters."""

OTHER = {"clusters": {"site-a": 0, "site-b": 0, "site-c": 1, "site-d": 1, "site-e": 0, "site-f": 2}}
