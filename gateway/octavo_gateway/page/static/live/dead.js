// Jobs that were given up, and their return to the queue.
import { html, useState } from "../vendor/htm-preact.js";
import { clock, count, plural, short } from "./format.js";
import { press } from "./settings.js";

export function Dead({ letters, total, ask, choose }) {
  const [chosen, choose_rows] = useState(new Set());
  const ids = Object.keys(letters), picked = ids.filter((id) => chosen.has(id));
  const toggle = (id) => choose_rows((before) => { const after = new Set(before); if (!after.delete(id)) after.add(id); return after; });
  const requeue = (jobs) => ask({
    question: `Put ${plural(jobs.length, "job")} back into the queue?`, word: "Requeue",
    work: async () => {
      const { failed } = await press("/v1/fleet/requeue", { job_ids: jobs });
      const [problem] = Object.values(failed);
      if (problem) throw new Error(`${plural(Object.keys(failed).length, "job")} stayed: ${problem}`);
    },
  });
  const every = (action, word) => ask({
    question: `${word} all ${plural(total, "job")}?${action === "purge" ? " They cannot be requeued any more." : ""}`, word,
    work: () => press("/v1/fleet/dead_letters", { action, all: true }),
  });
  return html`<section aria-labelledby="dead"><header><h2 id="dead">Dead letters</h2>
    ${ids.length > 0 && html`<div class="buttons">
      <button type="button" disabled=${!picked.length} onClick=${() => requeue(picked)}>Requeue ${count(picked.length)} chosen</button>
      <button type="button" onClick=${() => requeue(ids)}>Requeue all ${count(ids.length)} listed</button>
      ${total > ids.length && html`<button type="button" onClick=${() => every("requeue", "Requeue")}>Requeue all ${count(total)}</button>`}
      <button type="button" class="danger" onClick=${() => every("purge", "Purge")}>Purge all ${count(total)}</button></div>`}</header>
    ${!ids.length ? html`<p class="caption">No job was given up.</p>` : html`<p class="caption">${plural(total, "job")} in all, the latest first</p>
    <div class="scroll" tabindex="0" role="region" aria-label="jobs that were given up"><table>
      <thead><tr><th><span class="hidden">chosen</span></th><th>job</th><th>reason</th><th>attempts</th><th>worker</th><th>at</th></tr></thead>
      <tbody>${ids.map((id) => html`<tr key=${id}><td><input type="checkbox" aria-label=${`choose ${short(id)}`} checked=${chosen.has(id)} onChange=${() => toggle(id)} /></td>
        <td><button type="button" class="link" onClick=${() => choose(id)}>${short(id)}</button></td><td>${letters[id].reason}</td><td>${letters[id].attempts}</td>
        <td>${letters[id].worker ?? "–"}</td><td>${clock(letters[id].at)}</td></tr>`)}</tbody>
    </table></div>`}</section>`;
}
