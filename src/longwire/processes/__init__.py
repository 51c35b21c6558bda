"""The processes of a gateway: what each kind does from its start to its end, and what they share.

What lives here: the entry of each process, the estate that all attach to, and starting the whole.
What must not: rooms (lifecycle builds them), keeping processes alive (keeper).
"""
