"""Measuring a streaming endpoint as its users meet it: load, readings, figures, reports.

What lives here: everything of ``longwire bench`` but its flags' way in (cli/bench.py). It measures any endpoint with OpenAI's
API, and knows nothing of the gateway but its public API.
"""
