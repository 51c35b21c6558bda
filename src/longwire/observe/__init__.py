"""How the gateway is seen: instruments, metrics, the stream log, the reference pages.

What lives here: what the other rooms bump, and how that becomes a scrape, a log line or a page.
What must not: sockets, HTTP, or anything that the hot path would have to wait for.
"""
