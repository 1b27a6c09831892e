"""Seeing results: matplotlib figures and a self-contained HTML page."""

from __future__ import annotations
