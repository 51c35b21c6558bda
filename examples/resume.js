// A stream that survives its own connection, in plain JavaScript: for a browser (resume.html) and for Node 18 or newer.
//
//   for await (const event of resumable("http://127.0.0.1:8080/v1/chat/completions", { model, messages })) { ... }
//
// gives the answer's objects, each once and in order, however often the connection breaks. An error that the gateway reports
// inside the stream is thrown. Pass {headers: {Authorization: "Bearer ..."}} where the gateway asks for a key.
"use strict";

async function* resumable(url, body, { headers = {}, signal, fetch = globalThis.fetch, attempts = 8, firstWaitMs = 250 } = {}) {
  const key = crypto.getRandomValues(new Uint32Array(4)).join("-"); // the same for every try: never generates twice
  const post = { "Content-Type": "application/json", "Idempotency-Key": key, "Longwire-On-Disconnect": "grace=30" };
  let stream; // where to resume, once the POST has been answered
  let cursor = "0--1"; // <epoch>-<seq> of the last event that we have
  for (let failures = 0; failures < attempts; ) {
    let retryMs = firstWaitMs * 2 ** failures++ * (0.5 + Math.random() / 2);
    try {
      const last = cursor === "0--1" ? {} : { "Last-Event-ID": cursor };
      const response = stream
        ? await fetch(stream, { headers: { ...headers, ...last, Accept: "text/event-stream" }, cache: "no-store", signal })
        : await fetch(url, { method: "POST", headers: { ...post, ...headers }, body: JSON.stringify({ ...body, stream: true }), signal });
      if (response.status === 204) return;
      const passes = stream && (response.status >= 500 || [408, 425, 429].includes(response.status)); // busy, or a proxy's word
      if (!response.ok && !passes) throw final(`${response.status}: ${await response.text()}`);
      if (response.ok) stream ??= new URL(response.headers.get("Location"), response.url);
      for await (const { id, data, retry } of response.ok ? blocks(response.body) : []) {
        if (retry) retryMs = Number(retry); // a gateway that drains: come back then
        if (data === undefined) continue;
        const next = Number(cursor.replace(/^\d+-/, "")) + 1;
        if (id && Number(id.split("-")[1]) !== next) throw final(`event ${id} came where ${next} was due`);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        cursor = id ?? `0-${next}`; // the POST's events carry no id: count them
        if (event.error) throw final(event.error.message);
        failures = 0;
        yield event;
      }
    } catch (error) {
      if (error.final || signal?.aborted) throw error;
    }
    await new Promise((wake) => setTimeout(wake, Math.min(retryMs, 60_000)));
  }
  throw final(`gave up after ${attempts} tries; the last event was ${cursor}`);
}

async function* blocks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let text = "", read; !(read = await reader.read()).done; ) {
      const whole = (text + read.value).split(/\r\n\r\n|\n\n|\r\r/);
      text = whole.pop(); // an unfinished block: dropped if the connection ends here
      for (const block of whole) yield Object.fromEntries(block.split(/\r\n|\n|\r/).map((line) => line.split(/: ?(.*)/s, 2)));
    }
  } finally {
    await reader.cancel().catch(() => {}); // the connection may be broken already
  }
}

const final = (message) => Object.assign(new Error(message), { final: true });

if (typeof module !== "undefined") module.exports = { resumable };
