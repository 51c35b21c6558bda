// examples/resume.js under Node: prints {stream_id, events, connections}.
import resume from "../../../examples/resume.js";

const { url, path, body } = JSON.parse(process.argv[2]);
let streamId = null;
let connections = 0;
const watch = async (...request) => {
  connections++;
  const response = await fetch(...request);
  streamId ??= response.headers.get("x-stream-id");
  return response;
};

const events = [];
for await (const event of resume.resumable(url + path, body, { fetch: watch, firstWaitMs: 1 })) events.push(event);
console.log(JSON.stringify({ stream_id: streamId, events, connections }));
