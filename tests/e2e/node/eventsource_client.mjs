// The eventsource package (WHATWG EventSource for Node): reads a stream to its end, reconnecting by itself as it likes, until
// the gateway says that there is no more. Prints {events: [{id, data}], opened, status}.
import { EventSource } from "eventsource";

const { url } = JSON.parse(process.argv[2]);

// It waits 3 s before it reconnects, unless the server says otherwise; a test need not.
const later = globalThis.setTimeout;
globalThis.setTimeout = (call, delayMs, ...rest) => later(call, Math.min(delayMs, 10), ...rest);

const events = [];
let opened = 0;
const source = new EventSource(url);
source.addEventListener("open", () => opened++);
source.addEventListener("message", ({ lastEventId, data }) => events.push({ id: lastEventId, data }));
source.addEventListener("error", ({ code }) => {
  if (source.readyState === source.CLOSED) console.log(JSON.stringify({ events, opened, status: code }));
});
