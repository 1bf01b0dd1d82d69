// A job of octavo: submitted over HTTP, read from Redis. docs/wire.md says what this relies on.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { decodeEntry, decodeResult, without } from "./frames.mjs";
import { Redis, RedisError } from "./redis.mjs";

const PAGE = 512;
const BLOCK_MS = 1_000; // then its status is looked at
const PATIENCE_MS = 60_000; // with a server that does not answer
const FORGOTTEN_MS = 5_000; // a server that came back is told of its latest jobs again
const SUBMIT_ATTEMPTS = 6;

/** The id of a new job. Sending it again is harmless: the key makes it the same job. */
export async function submit(gateway, request, apiKey) {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": randomUUID() };
  if (apiKey) headers.Authorization = `Bearer ${apiKey}`;
  for (let attempt = 1; ; attempt++) {
    const options = { method: "POST", headers, body: JSON.stringify(request) };
    const response = await fetch(`${gateway}/v1/jobs`, options).catch((error) => error);
    if (response.ok) return (await response.json()).id;
    const passes = response instanceof Error || response.status === 429 || response.status >= 500;
    if (!passes || attempt === SUBMIT_ATTEMPTS) {
      throw response instanceof Error ? response : new Error(await response.text());
    }
    const seconds = response instanceof Error ? attempt / 4 : Number(response.headers.get("Retry-After")) || 1;
    await sleep(1_000 * seconds);
  }
}

/**
 * Everything beyond offset `after` as it comes, the end last: `{offset, text, index, token_ids, logprobs,
 * finish_reason}`, `{offset, status, usage, error}`. Or `{offset: 0, reset: true}`: drop what you have, it comes again from the start.
 */
export async function* follow(address, id, after = 0) {
  const reader = new Reader(id, after);
  let giveUpAt = 0; // a server that never answered is not waited for
  for (let pause = 50; !reader.ended; pause = Math.min(2 * pause, 1_000)) {
    let redis;
    try {
      redis = await Redis.connect(address);
      for await (const event of reader.events(redis)) {
        pause = 50;
        yield event;
      }
    } catch (error) {
      if (reader.answered) giveUpAt = Date.now() + PATIENCE_MS;
      reader.answered = false;
      if (!(error instanceof RedisError && error.passes) || Date.now() > giveUpAt) throw error;
      await sleep(pause);
    } finally {
      redis?.close();
    }
  }
}

/** What one consumer has of a job. It outlives connections. */
class Reader {
  ended = false;
  answered = false;
  #id;
  #key; // of its hash, its stream, its result
  #first;
  #read; // offset in the stream
  #offset; // what the consumer has; another one while a stream is read again
  #claim = ""; // that wrote the last token which was read, of a job with several sequences
  #isSeveral = false;
  #heard = new Map(); // tokens of each sequence
  #known = new Map(); // those of them that are still to be dropped from a stream that is read again

  constructor(id, after) {
    const cell = /^g(\d\d)_[0-9A-HJKMNP-TV-Z]{26}$/.exec(id)?.[1];
    if (cell === undefined) throw new Error(`${id} is no job id`);
    this.#id = id;
    this.#key = (kind) => `{c${cell}}:${kind}:${id}`;
    this.#first = this.#read = this.#offset = after;
  }

  async *events(redis) {
    if (await this.#startsOver(redis)) yield { offset: 0, reset: true };
    let lives = await this.#lives(redis);
    while (!this.ended) {
      let entries = await this.#entries(redis, lives); // after its status, so an ended job shows its end if it has one
      if (lives && (entries.length === 0 || this.#hasGap(entries))) {
        lives = await this.#lives(redis);
        if (lives && entries.length > 0) throw new Error(`the stream of job ${this.#id} lacks tokens`);
        continue;
      }
      if (entries.length === 0 || this.#hasGap(entries)) entries = await this.#rest(redis);
      // Before anything is told: a connection that is lost in between tells it again, and no order is in doubt.
      const eps = this.#isSeveral ? await this.#field(redis, "eps") : null;
      for (const entry of entries) {
        const event = this.#take(entry);
        this.#claim = claimAt(eps, this.#read);
        if (event !== null) yield event;
      }
    }
  }

  async #field(redis, name) {
    const [value] = await redis.command("HMGET", this.#key("j"), name);
    this.answered = true;
    return value;
  }

  /** Several sequences may come in another order from a server that has forgotten tokens: the stream is read again. */
  async #startsOver(redis) {
    const run = await this.#field(redis, "run");
    this.#isSeveral = run !== null;
    if (run === null) return false; // one sequence, and every offset into it holds
    const stored = Number(await this.#field(redis, "n"));
    const claim = claimAt(await this.#field(redis, "eps"), this.#read);
    if (this.#claim && this.#claim === claim && this.#read <= stored) return false; // its order goes on
    const info = (await redis.command("INFO", "server")).toString();
    if (!this.#claim && /run_id:(\w+)/.exec(info)?.[1] === run.toString()) return false;
    this.#read = 0;
    if (this.#first === 0) {
      this.#known = new Map(this.#heard);
      return false;
    }
    this.#first = this.#offset = 0; // what the consumer has of each sequence cannot be told
    this.#heard.clear();
    return true;
  }

  async #lives(redis) {
    const lostAt = Date.now() + FORGOTTEN_MS;
    for (;;) {
      const [status] = await redis.command("HMGET", this.#key("j"), "st");
      if (status !== null) return ["queued", "running"].includes(status.toString());
      if (Date.now() > lostAt) throw new Error(`no job ${this.#id}: it never existed or has expired`);
      await sleep(500);
    }
  }

  async #entries(redis, lives) {
    const block = lives ? ["BLOCK", BLOCK_MS] : [];
    const reply = await redis.command(
      "XREAD", "COUNT", PAGE, ...block, "STREAMS", this.#key("t"), `${this.#read}-0`,
    );
    return reply === null ? [] : reply[0][1].map(entryOf);
  }

  /** Of a job that has ended and whose stream has expired or lacks something. */
  async #rest(redis) {
    const result = await redis.command("GET", this.#key("r"));
    if (result === null) {
      const [last] = (await redis.command("XREVRANGE", this.#key("t"), "+", "-", "COUNT", 1)).map(entryOf);
      if (last?.end === undefined) throw new Error(`job ${this.#id} has ended and its tokens have expired`);
      return [last];
    }
    const { end, chunks } = decodeResult(result);
    let offset = 0;
    const entries = chunks.map((chunk) => ({ offset: (offset += chunk.token_ids.length), chunk }));
    return [...entries, { offset, end }];
  }

  #hasGap(entries) {
    let read = this.#read;
    for (const { offset, chunk } of entries) {
      if (offset - (chunk?.token_ids.length ?? 0) > read) return true;
      read = offset;
    }
    return false;
  }

  /** What the consumer does not have of an entry. */
  #take({ offset, chunk, end }) {
    if (end !== undefined) {
      this.ended = true;
      return { offset, ...end };
    }
    let count = chunk.token_ids.length;
    count = Math.max(0, Math.min(count, offset - this.#read)); // an offset may lie inside of an entry
    this.#read = Math.max(this.#read, offset);
    const known = Math.min(count, this.#known.get(chunk.index) ?? 0);
    this.#known.set(chunk.index, (this.#known.get(chunk.index) ?? 0) - known);
    count -= known;
    this.#heard.set(chunk.index, (this.#heard.get(chunk.index) ?? 0) + count);
    this.#offset += count;
    if (count === 0) return null;
    const { texts, ...rest } = without(chunk, chunk.token_ids.length - count);
    return { offset: this.#offset, text: texts.join(""), ...rest };
  }
}

/** Which claim wrote the token before `offset`: "" where it is not known. */
function claimAt(eps, offset) {
  const ends = (eps ?? "").toString().split(" ").map((part) => part.split(":"));
  return ends.find(([, end]) => offset > 0 && offset <= Number(end))?.[0] ?? "";
}

function entryOf([entryId, fields]) {
  const at = fields.findIndex((name, i) => i % 2 === 0 && name.toString() === "d");
  return { offset: parseInt(entryId.toString(), 10), ...decodeEntry(fields[at + 1]) };
}
