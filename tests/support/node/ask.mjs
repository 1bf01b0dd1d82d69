// A question to a model by the AI SDK, with a tool that reads the note:
//   node ask.mjs PROVIDER URL MODEL whole|stream|object|object-by-call
// Prints a line of JSON: the text, the calls with what they gave, the reasons for which the steps ended, the object.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

const [provider, url, name, kind] = process.argv.slice(2);
const settings = { baseURL: `${url}/v1`, apiKey: "none" };
const models = {
  openai: () => createOpenAI(settings)(name),
  "openai-chat": () => createOpenAI(settings).chat(name),
  "openai-compatible": () =>
    createOpenAICompatible({ ...settings, name: "octavo", includeUsage: true, supportsStructuredOutputs: true })(name),
  anthropic: () => createAnthropic(settings)(name),
};
const schema = (properties) =>
  jsonSchema({ type: "object", properties, required: Object.keys(properties), additionalProperties: false });
const read = tool({
  description: "Reads a file.",
  inputSchema: schema({ path: { type: "string" } }),
  execute: async ({ path }) => (path === "note.txt" ? "a heron" : "no such file"),
});

const prompt = "What is in note.txt?";
const asked = { model: models[provider](), system: "You are brief.", prompt, maxOutputTokens: 300 };
const acting = { ...asked, tools: { read }, stopWhen: stepCountIs(4) };
const counted = { type: "integer", minimum: 0, maximum: 9 };
const bird = Output.object({ schema: schema({ bird: { type: "string", maxLength: 12 }, legs: counted }) });
// A stream tells its errors here and ends.
let failure;
const onError = ({ error }) => (failure = error);
const result = {
  whole: () => generateText(acting),
  stream: () => streamText({ ...acting, onError }),
  // Anthropic's models of before have no schemas: for a name that it does not know the provider asks for a call.
  object: () =>
    generateText({ ...asked, output: bird, providerOptions: { anthropic: { structuredOutputMode: "outputFormat" } } }),
  "object-by-call": () => generateText({ ...asked, output: bird }),
}[kind]();

const answer = kind === "stream" ? result : await result;
let pieces = 0;
if (kind === "stream") for await (const _ of answer.textStream) pieces += 1;
if (failure) throw failure;
const steps = await answer.steps;
console.log(
  JSON.stringify({
    text: await answer.text,
    pieces,
    calls: steps.flatMap((step) => step.toolResults.map((call) => [call.toolName, call.input, call.output])),
    reasons: steps.map((step) => step.finishReason),
    tokens: (await answer.totalUsage).outputTokens,
    object: kind.startsWith("object") ? await answer.output : null,
    warnings: steps.flatMap((step) => step.warnings ?? []),
  }),
);
