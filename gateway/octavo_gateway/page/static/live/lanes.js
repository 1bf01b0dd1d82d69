// Lanes of models and classes, with the jobs in them.
import { html } from "../vendor/htm-preact.js";
import { count, hue, plural, short, span } from "./format.js";
import { press } from "./settings.js";

const SHOWN = 60;

function Chip({ id, job, choose }) {
  const state = job.status === "running" ? `${plural(job.tokens, "token")} on ${job.worker}` : `waits, ${plural(job.tokens, "token")}`;
  const again = job.attempts > 1 ? `, attempt ${job.attempts}` : "";
  return html`<li><button type="button" class=${`chip ${job.status}`} style=${{ "--hue": hue(id) }} onClick=${() => choose(id)}
    title=${`${id} of ${job.tenant}: ${state}${again}`} aria-label=${`job ${short(id)} of ${job.tenant}: ${state}${again}`}>
    ${job.status === "running" ? job.tokens : ""}</button></li>`;
}

function Lane({ lane, jobs, now, choose, ask }) {
  const name = `${lane.model} ${lane.priority}`, paused = lane.paused_since;
  const turn = () => ask({
    question: paused ? `Let ${name} go on?` : `Pause ${name}? Its jobs wait; those that run go on.`, word: paused ? "Resume" : "Pause",
    work: () => press("/v1/fleet/lanes", { model: lane.model, priority: lane.priority, paused: !paused }),
  });
  const rest = lane.running + lane.waiting - Math.min(jobs.length, SHOWN);
  return html`<article class="lane">
    <header><h3>${lane.model} <span class="class">${lane.priority}</span></h3>
      <button type="button" aria-label=${`${paused ? "Resume" : "Pause"} ${name}`} onClick=${turn}>${paused ? "Resume" : "Pause"}</button></header>
    ${paused && html`<p class="caption">paused for ${span(now - paused)}</p>`}
    <dl>
      <div><dt>running</dt><dd data-figure=${`${lane.model} ${lane.priority} running`}>${count(lane.running)}</dd></div>
      <div><dt>waiting</dt><dd data-figure=${`${lane.model} ${lane.priority} waiting`}>${count(lane.waiting)}</dd></div>
      <div><dt>backlog</dt><dd>${count(lane.backlog_tokens)} tokens</dd></div>
      <div><dt>oldest wait</dt><dd>${lane.waiting_since ? span(now - lane.waiting_since) : "–"}</dd></div>
    </dl>
    <ul class="chips">${jobs.slice(0, SHOWN).map(([id, job]) => html`<${Chip} key=${id} id=${id} job=${job} choose=${choose} />`)}</ul>
    ${rest > 0 && html`<p class="caption">and ${plural(rest, "more job")}</p>`}
  </article>`;
}

export function Lanes({ stats, choose, ask }) {
  const jobs = {};
  for (const entry of Object.entries(stats.jobs)) (jobs[entry[1].lane] ??= []).push(entry);
  const rank = ([, job]) => (job.status === "running" ? 0 : 1);
  for (const list of Object.values(jobs)) list.sort((one, other) => rank(one) - rank(other) || one[1].created_at - other[1].created_at);
  const busy = Object.entries(stats.lanes).filter(([, lane]) => lane.running || lane.waiting || lane.paused_since || lane.priority === "normal");
  return html`<section aria-labelledby="lanes"><h2 id="lanes">Lanes</h2>
    ${busy.length === 0 && html`<p class="wait">No worker has registered a model yet: start one with <code>octavo worker</code>.</p>`}
    <div class="lanes">${busy.map(([key, lane]) => html`<${Lane} key=${key} lane=${lane} jobs=${jobs[key] ?? []} now=${Date.now() / 1000} choose=${choose} ask=${ask} />`)}</div>
  </section>`;
}
