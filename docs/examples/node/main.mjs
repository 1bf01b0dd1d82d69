// node main.mjs submit '{"model": "demo", "prompt": "JULIET:"}'    submit a job and follow it
// node main.mjs follow JOB [OFFSET]                                follow any job, behind so many tokens
// node main.mjs decode HEX...                                      entries and results as JSON
//
// Prints the text as it comes, then the end as JSON to standard error; with --events one line of JSON an event.
// Environment: OCTAVO_GATEWAY, OCTAVO_API_KEY, REDIS_URL. Needs Node 18 and no packages.

import { decodeEntry, decodeResult } from "./frames.mjs";
import { follow, submit } from "./job.mjs";

const GATEWAY = process.env.OCTAVO_GATEWAY ?? "http://127.0.0.1:8000";
const REDIS = process.env.REDIS_URL ?? "redis://127.0.0.1:6379";

async function main(words) {
  const asEvents = words.includes("--events");
  const [command, argument, after] = words.filter((word) => word !== "--events");
  if (command === "submit" && argument) {
    const id = await submit(GATEWAY, JSON.parse(argument), process.env.OCTAVO_API_KEY);
    console.error(id);
    return print(follow(REDIS, id), asEvents);
  }
  if (command === "follow" && argument) return print(follow(REDIS, argument, Number(after ?? 0)), asEvents);
  if (command === "decode" && argument) {
    for (const hex of words.slice(1)) console.log(JSON.stringify(decodeAny(Buffer.from(hex, "hex"))));
    return 0;
  }
  console.error("submit REQUEST | follow JOB [OFFSET] | decode HEX...");
  return 2;
}

async function print(events, asEvents) {
  for await (const event of events) {
    if (asEvents) console.log(JSON.stringify(event));
    if (event.status !== undefined) {
      if (!asEvents) console.error(`\n${JSON.stringify(event)}`);
      return event.status === "completed" ? 0 : 1;
    }
    if (!asEvents) process.stdout.write(event.reset ? "\n--- again from the beginning ---\n" : event.text);
  }
  return 1;
}

function decodeAny(buffer) {
  try {
    return decodeEntry(buffer);
  } catch {
    return decodeResult(buffer);
  }
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
