// Reads a log with the protocol's own client: node log.mjs URL long-poll|sse. Prints its messages as JSON.
import { stream } from "@durable-streams/client";

const [url, live] = process.argv.slice(2);
const response = await stream({ url, offset: "-1", live, json: true });
const messages = [];
for await (const message of response.jsonStream()) messages.push(message);
console.log(JSON.stringify({ messages, offset: response.offset, closed: response.streamClosed }));
