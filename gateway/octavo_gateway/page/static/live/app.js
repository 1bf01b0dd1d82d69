// The page: one state, drawn whole at every change; preact does the least.
import { html, render, useState } from "../vendor/htm-preact.js";
import { Ask } from "./ask.js";
import { Batches } from "./batches.js";
import { Dead } from "./dead.js";
import { Fleet } from "./fleet.js";
import { clock, count, short } from "./format.js";
import { Job } from "./job.js";
import { Lanes } from "./lanes.js";
import { Prompt } from "./prompt.js";
import { Webhooks } from "./webhooks.js";
import { Workers } from "./workers.js";

function Moves({ moves, choose }) {
  return html`<section aria-labelledby="moves"><h2 id="moves">Preemptions and takeovers</h2>
    ${moves.length === 0 ? html`<p class="caption">None since this page was opened.</p>` : html`<ol class="moves scroll" tabindex="0">${moves.map((move) => html`<li key=${`${move.at} ${move.words}`}>
      <time>${clock(move.at)}</time> <b>${move.kind}</b> ${move.job && html`<button type="button" class="link" onClick=${() => choose(move.job)}>${short(move.job)}</button>`} ${move.words}</li>`)}</ol>`}
  </section>`;
}

function Head({ fleet }) {
  const { stats } = fleet;
  const figure = (name, value) => html`<div><dt>${name}</dt><dd data-figure=${name}>${value}</dd></div>`;
  return html`<header class="head"><h1>octavo</h1>
    <dl>${figure("queued", count(stats.queued))}${figure("running", count(stats.running))}${figure("tokens/s", count(stats.tokens_per_s))}${figure("dead", count(stats.dead))}</dl>
    <p class=${fleet.connected && !stats.problem ? "state good" : "state bad"} role="status">${stats.problem ?? (fleet.connected ? "live" : "reconnecting ...")}</p>
    <nav><a href="/docs">API</a> <a href="/metrics">metrics</a></nav></header>`;
}

function App({ fleet }) {
  const [job, choose] = useState(null), [question, ask] = useState(null);
  const { stats } = fleet;
  const models = [...new Set(Object.values(stats.lanes).map((lane) => lane.model))];
  return html`<${Head} fleet=${fleet} />
    <div class="columns">
      <div><${Lanes} stats=${stats} choose=${choose} ask=${ask} /><${Prompt} models=${models} choose=${choose} /></div>
      <${Workers} fleet=${fleet} ask=${ask} choose=${choose} />
    </div>
    <div class="columns"><${Moves} moves=${fleet.moves} choose=${choose} /><${Batches} batches=${stats.batches} /></div>
    <${Dead} letters=${stats.dead_letters} total=${stats.dead} ask=${ask} choose=${choose} />
    <${Webhooks} endpoints=${stats.webhooks} ask=${ask} />
    ${job && html`<${Job} key=${job} id=${job} fleet=${fleet} close=${() => choose(null)} />`}
    ${question && html`<${Ask} ...${question} done=${() => ask(null)} />`}`;
}

const root = document.getElementById("app");
const fleet = new Fleet(() => fleet.stats && draw());
function draw() {
  if (root.firstElementChild?.className === "wait") root.replaceChildren();
  render(html`<${App} fleet=${fleet} />`, root);
}
fleet.follow();
