"""A suite that any gateway for language models can be held against, whoever made it.

What lives here: the rows (what is sent, what must come), the engine that breaks by name, the clients, and the report.
What must not: anything of a gateway's inside. Only the wire formats and the vocabulary are shared with this one.
"""
