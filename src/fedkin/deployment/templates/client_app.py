"""The client side: fedkin's own."""

from fedkin.engines.flower.client import app

__all__ = ["app"]
