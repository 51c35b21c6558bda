"""The same, but the stream survives its own connection: pull the cable while it prints.

$ pip install '.[client]'    # in a checkout; once there are releases: pip install 'longwire[client]'
$ longwire serve &             # in a checkout: make serve &
$ python examples/resumable.py "Tell me a long story."
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

from longwire.client import ResumableStream, resumable

client = resumable(
    OpenAI(
        base_url=os.environ.get("LONGWIRE_URL", "http://127.0.0.1:8080") + "/v1",
        api_key=os.environ.get("LONGWIRE_API_KEY", "none"),
    )
)
question = " ".join(sys.argv[1:]) or "Tell me a long story about a lighthouse."
model = client.models.list().data[0].id

messages = [{"role": "user", "content": question}]

# A bound, for a small model may talk for ever.
stream = client.chat.completions.create(model=model, messages=messages, stream=True, max_tokens=400)
for event in stream:
    if event.choices:
        print(event.choices[0].delta.content or "", end="", flush=True)
print()

if isinstance(stream, ResumableStream):  # not so behind a server that is no Longwire
    counts = stream.statistics()
    print(f"{stream.stream_id}: {counts['events']} events over {counts['connections']} connection(s)", file=sys.stderr)
