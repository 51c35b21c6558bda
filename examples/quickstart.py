"""Ask the gateway with the plain openai client.

$ pip install openai
$ longwire serve &     # in a checkout: make serve &
$ python examples/quickstart.py "Why is the sky blue?"
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("LONGWIRE_URL", "http://127.0.0.1:8080") + "/v1",
    api_key=os.environ.get("LONGWIRE_API_KEY", "none"),  # a gateway without tenants asks for no key
)
question = " ".join(sys.argv[1:]) or "Say hello in one sentence."
model = client.models.list().data[0].id

messages = [{"role": "user", "content": question}]

# A bound, for a small model may talk for ever.
for event in client.chat.completions.create(model=model, messages=messages, stream=True, max_tokens=200):
    if event.choices:
        print(event.choices[0].delta.content or "", end="", flush=True)
print()
