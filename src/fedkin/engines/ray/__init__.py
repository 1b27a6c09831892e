"""The ray engine: clients sharded over Ray actors, on this machine or on a cluster.

cluster  the Ray that is joined or started, and what the user may say about it
actor    a host in a process of its own
clients  the `Clients` contract over actors
"""
