// One job: its timeline, its request, its text.
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { curl, python } from "./code.js";
import { clock, plural, span } from "./format.js";
import { look } from "./settings.js";

// What happened to it, by time: what the queue knows, and what this page saw.
function timeline(job, seen) {
  const steps = [{ at: job.created_at, kind: "accepted", words: `${job.priority}, of ${job.tenant}` }];
  for (const attempt of job.history ?? []) {
    if (attempt.started_at) steps.push({ at: attempt.started_at, kind: "claimed", words: `by ${attempt.worker ?? "a worker"} at token ${attempt.tokens_before ?? 0}` });
    if (attempt.ended_at && attempt.why !== job.status) steps.push({ at: attempt.ended_at, kind: attempt.why, words: `at token ${attempt.tokens ?? 0}` });
  }
  if (!job.history?.length && job.started_at) steps.push({ at: job.started_at, kind: "claimed", words: job.worker && job.attempts === 1 ? `by ${job.worker}` : `${plural(job.attempts, "attempt")}, the latest by ${job.worker ?? "a worker"}` });
  if (job.first_token_at) steps.push({ at: job.first_token_at, kind: "first token", words: "" });
  steps.push(...seen);
  if (job.finished_at) steps.push({ at: job.finished_at, kind: job.status, words: job.error ? job.error.message : plural(job.tokens, "token") });
  return steps.sort((one, other) => one.at - other.at);
}

function Copy({ label, text }) {
  const [word, say] = useState(label);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("Select it below");
    }
    setTimeout(() => say(label), 2000);
  };
  return html`<button type="button" onClick=${copy} data-code=${text}>${word}</button>`;
}

export function Job({ id, fleet, close }) {
  const dialog = useRef(null);
  const [found, show] = useState(null), [problem, tell] = useState("");
  const living = fleet.stats.jobs[id];
  useEffect(() => dialog.current.showModal(), []);
  useEffect(() => { look(`/v1/fleet/jobs/${id}`).then(show, (error) => tell(error.message)); }, [id, living?.status, living?.attempts, Math.floor((living?.tokens ?? 0) / 50)]);
  const job = found?.job;
  return html`<dialog ref=${dialog} class="sheet" aria-labelledby="job" onClose=${close}>
    <header><h2 id="job">Job <code>${id}</code></h2><button type="button" onClick=${() => dialog.current.close()}>Close</button></header>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${job && html`<p>${job.model}, ${job.status}, ${plural(living?.tokens ?? job.tokens, "token")}</p>
      <ol class="timeline">${timeline(job, fleet.seen.get(id) ?? []).map((step) => html`<li><time>${clock(step.at)}</time> <b>${step.kind}</b> ${step.words}
        <span class="caption">${step.at > job.created_at ? `+${span(step.at - job.created_at)}` : ""}</span></li>`)}</ol>
      ${found.request ? html`<h3>Request</h3>
        <div class="buttons"><${Copy} label="Copy as curl" text=${curl(found.request)} /><${Copy} label="Copy as Python" text=${python(found.request)} /></div>
        <pre tabindex="0" role="region" aria-label="request">${JSON.stringify(found.request, null, 2)}</pre>`
      : html`<p class="caption">${found.shows_content ? "Its request was kept until its end." : "Its request and its text are its tenant's own."}</p>`}
      ${found.texts?.map((text, place) => html`<h3>${found.texts.length > 1 ? `Text ${place + 1}` : "Text"}</h3><pre tabindex="0" role="region" aria-label=${`text ${place + 1}`}>${text}</pre>`)}`}
  </dialog>`;
}
