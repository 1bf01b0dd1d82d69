// A prompt that streams, and the number of the token that it would go on from.
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { short } from "./format.js";

export function Prompt({ models, choose }) {
  const [job, start] = useState(null), [text, write] = useState(""), [place, move] = useState(0);
  const [state, tell] = useState("idle"), [problem, complain] = useState("");
  const [model, pick] = useState(null);
  const events = useRef(null), form = useRef(null);
  const leave = () => { events.current?.close(); events.current = null; };
  useEffect(() => leave, []);

  const follow = (id, after) => {
    leave();
    const source = (events.current = new EventSource(`/v1/jobs/${id}/stream?after=${after}`));
    tell("streaming");
    source.onerror = () => tell(source.readyState === EventSource.CLOSED ? "disconnected" : "reconnecting");
    source.onopen = () => tell("streaming");
    source.addEventListener("token", (event) => {
      write((before) => before + JSON.parse(event.data).text);
      move(event.lastEventId);
      tell("streaming");
    });
    source.addEventListener("stream_reset", () => { write(""); move(0); });
    for (const kind of ["done", "error"]) {
      source.addEventListener(kind, (event) => {
        if (!event.data) return; // a lost connection, not the job's end
        leave();
        const { status, error } = JSON.parse(event.data);
        tell(status ?? "failed");
        if (error) complain(error.message);
      });
    }
  };

  const submit = async (event) => {
    event.preventDefault();
    const asked = new FormData(form.current), seed = asked.get("seed");
    const sampling = { max_tokens: Number(asked.get("max_tokens")), temperature: 0.8, ...(seed && { seed: Number(seed) }) };
    const body = { model: model ?? models[0], prompt: asked.get("prompt"), sampling };
    const reply = await fetch("/v1/jobs", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const answer = await reply.json();
    write(""); move(0); complain("");
    if (!reply.ok) return complain(answer.error.message);
    start(answer.id);
    follow(answer.id, 0);
  };

  const open = ["streaming", "reconnecting"].includes(state);
  return html`<section aria-labelledby="prompt"><h2 id="prompt">Prompt</h2>
    <form ref=${form} onSubmit=${submit}>
      <label>Prompt <textarea name="prompt" rows="3" required>ROMEO:</textarea></label>
      <div class="fields">
        <label>Model <select name="model" value=${model ?? models[0]} onChange=${(event) => pick(event.target.value)}>${models.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
        <label>Tokens <input name="max_tokens" type="number" min="1" max="100000" value="300" required /></label>
        <label>Seed <input name="seed" type="number" min="0" placeholder="any" /></label>
        <button type="submit" class="main">Send</button>
        ${job && state !== "completed" && (open
          ? html`<button type="button" onClick=${() => { leave(); tell("disconnected"); }}>Disconnect</button>`
          : state === "disconnected" && html`<button type="button" onClick=${() => follow(job, place)}>Resume</button>`)}
      </div>
    </form>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <p class="caption" role="status" id="stream-state">${job ? html`job <button type="button" class="link" onClick=${() => choose(job)}>${short(job)}</button>, ${state}, would go on from token <b id="place">${String(place).split(".")[0].split("-")[0]}</b>` : "Its tokens appear here, whatever becomes of the worker."}</p>
    <pre id="text" tabindex="0" role="region" aria-label="text of the answer">${text}</pre>
  </section>`;
}
