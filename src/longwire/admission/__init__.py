"""Who may come in, and how many at once.

What lives here: tenants and their keys (tenants.py, keysfile.py), their limits (limiter.py) and the counts that all shards
share (matrix.py).
What must not: HTTP (headers come as bytes, refusals go as errors), engines, streams.
"""
