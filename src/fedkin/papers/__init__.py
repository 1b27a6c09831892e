"""The published tables and figures: one TOML each, and the functions behind figures that are not plain training runs."""
