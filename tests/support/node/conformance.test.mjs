// The public conformance tests of Durable Streams, against the server at CONFORMANCE_URL.
import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({ baseUrl: process.env.CONFORMANCE_URL, longPollTimeoutMs: 20_000 });
