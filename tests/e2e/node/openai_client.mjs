// Node's openai client: one stream, printed as {stream_id, events}; with "whole": one answer, printed as {answer}.
import OpenAI from "openai";

const { url, path, body, whole } = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const { create } = path === "/v1/completions" ? client.completions : client.chat.completions;
const call = create.call(path === "/v1/completions" ? client.completions : client.chat.completions, { ...body, stream: !whole });

if (whole) {
  console.log(JSON.stringify({ answer: await call }));
} else {
  const { data, response } = await call.withResponse();
  const events = [];
  for await (const event of data) events.push(event);
  console.log(JSON.stringify({ stream_id: response.headers.get("x-stream-id"), events }));
}
