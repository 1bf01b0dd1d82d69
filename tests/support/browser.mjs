// Of a browser, what the examples use of it. `id` is the job that the shell's examples made.
import process from "node:process";

const id = process.env.ID;
let saved;
const origin = process.env.ORIGIN;
const kept = new Map();
const localStorage = new Proxy({}, {
  get: (_, name) => kept.get(name),
  set: (_, name, value) => kept.set(name, String(value)) && true,
});
const output = { append: (text) => process.stdout.write(text) };

class EventSource {
  #listeners = {};
  #closed = false;
  #last = "";

  constructor(address) {
    this.#follow(new URL(address, origin));
  }

  addEventListener(kind, listener) {
    (this.#listeners[kind] ??= []).push(listener);
  }

  close() {
    this.#closed = true;
  }

  async #follow(address) {
    while (!this.#closed) {
      try {
        const answer = await fetch(address, { headers: this.#last ? { "Last-Event-ID": this.#last } : {} });
        if (answer.status !== 200) return;
        let text = "";
        for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
          const events = (text + piece).split("\n\n");
          text = events.pop();
          events.forEach((event) => this.#closed || this.#tell(event));
        }
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  }

  #tell(event) {
    const fields = { event: "message", data: "", id: this.#last };
    for (const line of event.split("\n")) {
      const [, name, value] = line.match(/^(\w+): ?(.*)$/) ?? [];
      if (name) fields[name] = value;
    }
    this.#last = fields.id;
    const told = { type: fields.event, data: fields.data, lastEventId: fields.id };
    if (fields.data || fields.event !== "message") {
      (this.#listeners[fields.event] ?? []).forEach((listener) => listener(told));
      if (fields.event === "message") this.onmessage?.(told);
    }
  }
}

