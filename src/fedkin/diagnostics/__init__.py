"""Diagnostics: what theory promises of a setting, and what structure of the clients a run has found."""
