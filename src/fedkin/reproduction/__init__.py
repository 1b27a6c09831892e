"""Reproduction: the published tables and figures, run again, beside what the papers print (`fedkin reproduce`)."""
