"""pFedMe in the contract tests: γλ and γ_p·λ as in its defaults."""

PARAMETERS = {"lr": 0.01}
