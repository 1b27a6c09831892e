"""Privacy: noise with a stated guarantee."""
