// A page's script, visited twice: the second visit comes in the middle of the story, and goes on with what the first kept.
import { readFileSync } from "node:fs";

const code = readFileSync(process.argv[2], "utf8");

function visit() {
  const elements = { "#story": {}, "#begin": {} };
  const opened = [];
  class Opened extends EventSource {
    constructor(address) {
      super(address);
      this.ended = new Promise((resolve) => this.addEventListener("done", resolve));
      opened.push(this);
    }
  }
  const document = { querySelector: (name) => elements[name] };
  const here = (path, options) => fetch(new URL(path, origin), options);
  new Function("document", "localStorage", "EventSource", "fetch", code)(document, localStorage, Opened, here);
  return { elements, opened };
}

const first = visit();
await first.elements["#begin"].onclick();
while (Number(localStorage.seen) < 20) await new Promise((resolve) => setTimeout(resolve, 5));
first.opened[0].close();
const left = Number(localStorage.seen);
const second = visit();
await second.opened[0].ended;
const answer = await fetch(new URL(`/stories/${localStorage.job}`, origin));
const data = (await answer.text()).split("\n\n").filter((event) => event.startsWith("id:"));
const whole = data.map((event) => JSON.parse(event.split("data: ")[1])).join("");
console.log(JSON.stringify({ left, seen: Number(localStorage.seen), same: whole === second.elements["#story"].textContent }));
process.exit(0);
