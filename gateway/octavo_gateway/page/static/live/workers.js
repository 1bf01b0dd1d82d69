// Workers: their batch, their figures as plots, their blocks, and the buttons of those that this machine owns.
import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { BlockCanvas } from "./canvas.js";
import { count, plural } from "./format.js";
import { Plot } from "./plot.js";
import { look, press, settings } from "./settings.js";

const CONTROLS = "/v1/fleet/controls";

function Buttons({ worker, paused, ask, changed }) {
  const button = (word, action, question) => html`<button type="button" onClick=${() => ask({
    question, word, work: () => press(CONTROLS, { action, pid: worker.pid }).then(changed),
  })}>${word}</button>`;
  return html`<div class="buttons">
    ${paused
      ? button("Resume", "resume", `Let ${worker.id} go on?`)
      : button("Pause", "pause", `Stop the processes of ${worker.id}? Its jobs go on elsewhere once its lease has run out.`)}
    ${button("Kill", "kill", `Kill ${worker.id} (SIGKILL)? Its jobs go on elsewhere at their next token.`)}
  </div>`;
}

// Memory beside the KV blocks of all layers, by use.
function uses(what, counts) {
  const told = ["used", "pinned", "cached", "quarantined", "free"].filter((kind) => counts[kind]).map((kind) => `${count(counts[kind])} ${kind}`);
  return `${what}: ${told.join(", ")}`;
}

function Worker({ worker, fleet, owned, ask, changed, choose }) {
  const blocks = fleet.maps.get(worker.id);
  const [times, tokens, steps, firsts] = (fleet.history.get(worker.id) ?? [[], [], [], []]).map((column) => column.slice());
  return html`<article class="worker">
    <header><h3>${worker.id}</h3>${owned && html`<${Buttons} worker=${worker} paused=${owned.paused} ask=${ask} changed=${changed} />`}</header>
    <p class="caption">${worker.model} on ${worker.host}, process ${worker.pid}${owned?.paused ? " · paused" : ""}</p>
    <dl>
      <div><dt>batch</dt><dd>${count(worker.running)}${worker.max_running ? ` of ${count(worker.max_running)}` : ""}</dd></div>
      <div><dt>waiting</dt><dd>${count(worker.waiting)}</dd></div>
      <div><dt>preemptions</dt><dd>${count(worker.preemptions)}</dd></div>
      <div><dt>KV used</dt><dd>${count(worker.blocks.used)} blocks</dd></div>
      ${"used" in worker.states && html`<div><dt>states</dt><dd>${uses("slots", worker.states)}</dd></div>`}
      ${"used" in worker.windows && html`<div><dt>windows</dt><dd>${uses("blocks", worker.windows)}</dd></div>`}
    </dl>
    <div class="plots">
      <${Plot} label="tokens" unit="/s" times=${times} values=${tokens} />
      <${Plot} label="step" unit="ms" times=${times} values=${steps} />
      <${Plot} label="first token" unit="s" times=${times} values=${firsts} />
    </div>
    ${blocks ? blocks.regions.map((region) => html`<${BlockCanvas} key=${region.one} blocks=${region} worker=${worker.id} choose=${choose} />`) : html`<p class="caption">No map of its blocks yet.</p>`}
  </article>`;
}

export function Workers({ fleet, ask, choose }) {
  const workers = Object.values(fleet.stats.workers);
  const [owned, own] = useState({});
  const refresh = () => settings.controls && look(CONTROLS).then(({ workers: found }) => own(Object.fromEntries(found.map((one) => [one.pid, one]))), () => own({}));
  useEffect(() => { refresh(); }, [workers.map((worker) => worker.pid).join()]);
  return html`<section aria-labelledby="workers"><header><h2 id="workers">Workers</h2>
    ${settings.controls && html`<button type="button" onClick=${() => ask({
      question: "Add a worker on this machine?", word: "Add", work: () => press(CONTROLS, { action: "add" }).then(refresh),
    })}>Add a worker</button>`}</header>
    <p class="legend"><span class="key job">a job's own hue</span><span class="key shared">shared</span><span class="key pinned">pinned</span>
      <span class="key cached">cached</span><span class="key quarantined">quarantined</span><span class="key swapped">swapped (darker)</span><span class="key free">free</span></p>
    ${workers.length === 0 && html`<p class="wait">${plural(0, "worker")}: jobs wait until one starts.</p>`}
    <div class="workers">${workers.map((worker) => html`<${Worker} key=${worker.id} worker=${worker} fleet=${fleet} owned=${owned[worker.pid]}
      ask=${ask} changed=${refresh} choose=${choose} />`)}</div>
  </section>`;
}
