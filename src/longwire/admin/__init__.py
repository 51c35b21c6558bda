"""The operator's side: metrics, health and every tenant's streams, on a port of its own.

What lives here: the admin HTTP API and the server that runs it.
What must not: the data plane's objects; it sees the gateway through one small protocol.
"""
