"""Client graphs: the noun, and ways to build one. `ClientGraph` is all a method needs to know."""

from __future__ import annotations

from fedkin.graphs.client_graph import ClientGraph

__all__ = ["ClientGraph"]
