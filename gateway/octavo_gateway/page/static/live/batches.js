// Batches that have not ended.
import { html } from "../vendor/htm-preact.js";
import { clock, count, short, span } from "./format.js";

export function Batches({ batches }) {
  const now = Date.now() / 1000, rows = Object.entries(batches);
  if (!rows.length) return html`<section aria-labelledby="batches"><h2 id="batches">Batches</h2><p class="caption">None is open.</p></section>`;
  return html`<section aria-labelledby="batches"><h2 id="batches">Batches</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="open batches"><table>
      <thead><tr><th>batch</th><th>tenant</th><th>state</th><th>lines</th><th>failed</th><th>predicted end</th><th>window ends in</th></tr></thead>
      <tbody>${rows.map(([id, batch]) => html`<tr key=${id}><td title=${id}>${short(id)}</td><td>${batch.tenant}</td><td>${batch.status}</td>
        <td><progress max=${Math.max(1, batch.total)} value=${batch.completed + batch.failed} aria-label=${`progress of batch ${short(id)}`}></progress> ${count(batch.completed + batch.failed)} of ${count(batch.total)}</td>
        <td>${count(batch.failed)}</td>
        <td>${batch.predicted_end ? `${clock(batch.predicted_end)}${batch.predicted_end > batch.expires_at ? ", too late" : ""}` : "–"}</td>
        <td>${span(batch.expires_at - now)}</td></tr>`)}</tbody>
    </table></div></section>`;
}
