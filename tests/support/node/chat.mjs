// A chat as a page has it with useChat, which drives this very class: asks at one gateway, resumes at another.
//   node chat.mjs FIRST SECOND MODEL MAX_TOKENS
// Prints a line of JSON for each step; after "streaming" the first gateway may be killed.
import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";

const [first, second, model, tokens] = process.argv.slice(2);
const print = (step, more) => console.log(JSON.stringify({ step, ...more }));
const textOf = (chat) =>
  (chat.messages.findLast((message) => message.role === "assistant")?.parts ?? [])
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("");
const body = { model, max_tokens: Number(tokens) };
let origin = first;
// As behind one address: whichever gateway is there answers.
const transport = new DefaultChatTransport({
  api: "http://gateway/v1/chat",
  body,
  fetch: (address, init) => fetch(String(address).replace("http://gateway", origin), init),
});
const open = (messages) => new Chat({ id: "a chat", messages, transport, onError: () => {} });

const chat = open([]);
const watching = setInterval(() => {
  if (textOf(chat).length > 100) {
    clearInterval(watching);
    print("streaming");
  }
}, 1);
await chat.sendMessage({ text: "hello" });
print("broken", { status: chat.status, text: textOf(chat) });

origin = second;
const reloaded = open(chat.messages.filter((message) => message.role === "user"));
await Promise.all([chat.resumeStream(), reloaded.resumeStream()]);
for (const each of [chat, reloaded]) {
  const answers = each.messages.filter((message) => message.role === "assistant");
  print("resumed", { status: each.status, text: textOf(each), answers: answers.map((message) => message.id) });
}

const before = chat.messages.length;
await chat.resumeStream();
print("nothing runs", { status: chat.status, added: chat.messages.length - before });
