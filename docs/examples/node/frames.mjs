// Frames to what they say: docs/wire.md, "Frames". Missing fields have their defaults, unknown ones at the end are ignored.

import { decode } from "./msgpack.mjs";

const VERSION = 1;

/** An entry of a token stream: `{chunk}` or `{end}`. */
export function decodeEntry(buffer) {
  const [kind, ...fields] = open(buffer);
  if (kind === "c") return { chunk: chunkOf(fields) };
  if (kind === "e") return { end: endOf(fields) };
  throw new Error(`a stream has no frames of kind ${kind}`);
}

/** A result: the job's `end` and all its `chunks`. */
export function decodeResult(buffer) {
  const [kind, end, chunks] = open(buffer);
  if (kind !== "r") throw new Error(`expected a result, got a frame of kind ${kind}`);
  return { end: endOf(end), chunks: chunks.map(chunkOf) };
}

/** Without its first tokens. */
export function without(chunk, count) {
  const [token_ids, texts] = [chunk.token_ids.slice(count), chunk.texts.slice(count)];
  return { ...chunk, token_ids, texts, logprobs: chunk.logprobs && chunk.logprobs.slice(count) };
}

function open(buffer) {
  const frame = decode(buffer);
  if (!Array.isArray(frame)) throw new Error("not a frame of octavo");
  if (frame[0] !== VERSION) throw new Error(`frames of version ${frame[0]} need another reader`);
  return frame.slice(1);
}

function chunkOf([index, token_ids, texts, logprobs = null, finish_reason = null]) {
  if (token_ids.length !== texts.length) throw new Error("a chunk needs one text for every token");
  return { index, token_ids, texts, logprobs: logprobs && logprobs.map(logprobOf), finish_reason };
}

function logprobOf([token_id, bytes, logprob, top = []]) {
  return { token_id, bytes: [...bytes], logprob, top: top.map(topOf) };
}

function topOf([token_id, bytes, logprob]) {
  return { token_id, bytes: [...bytes], logprob };
}

function endOf([status, usage = [], error = null]) {
  const [prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0] = usage;
  return { status, usage: { prompt_tokens, completion_tokens, cached_tokens }, error: error && errorOf(error) };
}

function errorOf([code, message, param = null]) {
  return { code, message, param };
}
