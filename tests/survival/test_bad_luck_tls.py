"""TLS of our own: its state dies with a shard, so the connection is cut, and the client goes on by its cursor."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import openai
import pytest

from longwire.client import resumable
from longwire.sim.answer import answer_text

from .luck import kill, running

pytestmark = pytest.mark.e2e

TOKENS = 1500


def make_pair(folder: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is needed to make a certificate")
    key, certificate = folder / "our.key", folder / "our.pem"
    make = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    who = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*make, *who, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


async def test_after_a_kill_clients_over_tls_resume_by_cursor_and_read_no_garbage(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path)
    async with running(2, tls_cert_file=certificate, tls_key_file=key) as gateway:
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=certificate), timeout=10) as http:
            plain = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", http_client=http, max_retries=0)
            client = resumable(plain)
            under_way = asyncio.Event()

            async def read(seed: int) -> str:
                text = ""
                stream = await client.chat.completions.create(
                    model="sim",
                    messages=[{"role": "user", "content": str(seed)}],
                    stream=True,
                    extra_body={"sim": {"seed": seed, "tokens": TOKENS, "itl_ms": 10, "ttft_ms": 1}},
                )
                async for event in stream:
                    text += event.choices[0].delta.content or "" if event.choices else ""
                    under_way.set()
                return text

            reading = [asyncio.create_task(read(seed)) for seed in range(1, 7)]
            await under_way.wait()
            await asyncio.sleep(1)
            victims = [await gateway.pid_of(0), await gateway.pid_of(1)]
            kill(victims[0])
            await gateway.settled(victims[0])
            kill(victims[1])
            await gateway.settled(*victims)
            gateway.sim.hurry()
            assert await asyncio.gather(*reading) == [answer_text(seed, TOKENS) for seed in range(1, 7)]
            assert gateway.upstream_requests == 6, "no generation was begun anew"
