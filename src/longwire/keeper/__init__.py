"""The processes of one gateway: who starts them, what they tell each other, and what outlives a killed one.

What lives here: messages with descriptors between processes, and the guardian that keeps a shard's sockets open.
What must not: parsing anything that a client or an engine has sent; asyncio; any other room but words.
"""
