// A connection to Redis: one command after the other, replies as null, numbers, Buffers and arrays.

import net from "node:net";
import tls from "node:tls";

const SILENCE_MS = 15_000; // of a server that owes a reply: longer than any XREAD here blocks
const PASSING = new Set([
  ...["LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"],
  ...["READONLY", "UNBLOCKED", "BUSY"],
]);

/** An error of the connection, or a reply that another attempt may not get: `passes` tells. */
export class RedisError extends Error {
  constructor(message, passes) {
    super(message);
    this.passes = passes;
  }
}

export class Redis {
  #socket;
  #chunks;
  #buffer = Buffer.alloc(0);

  /** `redis://user:password@host:port/database`, or `rediss://` for TLS. */
  static async connect(address) {
    const url = new URL(address);
    const redis = new Redis(url);
    try {
      await redis.#prepare(url);
    } catch (error) {
      redis.close();
      throw error;
    }
    return redis;
  }

  constructor(url) {
    const where = { host: url.hostname || "127.0.0.1", port: Number(url.port) || 6379 };
    this.#socket = url.protocol === "rediss:" ? tls.connect(where) : net.connect(where);
    this.#socket.setNoDelay();
    this.#socket.on("error", () => {}); // the command that waits for a reply gets it
    this.#socket.setTimeout(SILENCE_MS, () => this.#socket.destroy(new Error("the server is silent")));
    this.#chunks = this.#socket[Symbol.asyncIterator]();
  }

  async #prepare(url) {
    if (url.password) {
      const user = url.username ? [decodeURIComponent(url.username)] : [];
      await this.command("AUTH", ...user, decodeURIComponent(url.password));
    }
    if (url.pathname.length > 1) await this.command("SELECT", url.pathname.slice(1));
  }

  /** Throws RedisError. */
  async command(...words) {
    const parts = words.map((word) => `$${Buffer.byteLength(String(word))}\r\n${word}\r\n`);
    this.#socket.write(`*${words.length}\r\n${parts.join("")}`);
    const reply = await this.#reply();
    if (reply instanceof RedisError) throw reply;
    return reply;
  }

  close() {
    this.#socket.destroy();
  }

  async #reply() {
    const line = (await this.#line()).toString();
    const rest = line.slice(1);
    switch (line[0]) {
      case "+": return rest;
      case "-": return new RedisError(rest, PASSING.has(rest.split(" ")[0]));
      case ":": return Number(rest);
      case "$": return rest === "-1" ? null : (await this.#take(Number(rest) + 2)).subarray(0, -2);
      case "*": {
        if (rest === "-1") return null;
        const items = [];
        for (let i = 0; i < Number(rest); i++) items.push(await this.#reply());
        return items;
      }
      default: throw new RedisError("this is no Redis server", false);
    }
  }

  async #line() {
    let end;
    while ((end = this.#buffer.indexOf("\r\n")) < 0) await this.#receive(1);
    return (await this.#take(end + 2)).subarray(0, -2);
  }

  async #take(count) {
    if (this.#buffer.length < count) await this.#receive(count - this.#buffer.length);
    const taken = this.#buffer.subarray(0, count);
    this.#buffer = this.#buffer.subarray(count);
    return taken;
  }

  /** At least so many bytes more. */
  async #receive(count) {
    const parts = [this.#buffer];
    while (count > 0) {
      const part = await this.#next();
      parts.push(part);
      count -= part.length;
    }
    this.#buffer = Buffer.concat(parts);
  }

  async #next() {
    try {
      const { done, value } = await this.#chunks.next();
      if (!done) return value;
    } catch (error) {
      throw new RedisError(error.message, true);
    }
    throw new RedisError("the connection was closed", true);
  }
}
