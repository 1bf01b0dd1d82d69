// Webhooks that fail, by endpoint: what has failed to the end, what is tried again, and sending it anew.
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { clock, count, plural, short, span } from "./format.js";
import { look, press } from "./settings.js";

async function sendAgain(id, event) {
  const { resent } = await press(`/v1/fleet/webhooks/${id}/resend`, event ? { event_id: event } : {});
  if (!resent) throw new Error("Nothing was sent again: it is no longer listed, or too much waits for this endpoint.");
}

const next = (at) => (at ? `in ${span(at - Date.now() / 1000)}` : "–");

// Deliveries to one endpoint, asked for anew as its counts change.
function Deliveries({ id, endpoint, ask, close }) {
  const dialog = useRef(null);
  const [found, show] = useState(null), [problem, tell] = useState("");
  useEffect(() => dialog.current.showModal(), []);
  useEffect(() => { look(`/v1/fleet/webhooks/${id}`).then(show, (error) => tell(error.message)); }, [id, endpoint?.failed, endpoint?.waiting, endpoint?.failed_at]);
  const again = (event) => ask({ question: `Send ${event.event_type} of ${short(event.of)} again?`, word: "Send again", work: () => sendAgain(id, event.event_id) });
  return html`<dialog ref=${dialog} class="sheet" aria-labelledby="endpoint" onClose=${close}>
    <header><h2 id="endpoint">Endpoint <code>${id}</code></h2><button type="button" onClick=${() => dialog.current.close()}>Close</button></header>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${found && (found.data.length === 0 ? html`<p class="caption">Nothing waits for it, and nothing has failed.</p>` : html`
      <div class="scroll" tabindex="0" role="region" aria-label="deliveries"><table>
        <thead><tr><th>event</th><th>of</th><th>state</th><th>tries</th><th>last answer</th><th>next try</th><th><span class="hidden">again</span></th></tr></thead>
        <tbody>${found.data.map((one) => html`<tr key=${one.event_id}><td>${one.event_type}</td><td title=${one.of}>${short(one.of)}</td><td>${one.status}</td>
          <td>${count(one.tries)}</td><td>${one.last_answer ?? "–"}</td><td>${next(one.next_try_at)}</td>
          <td>${one.status === "failed" && html`<button type="button" aria-label=${`Send again ${one.event_type} of ${short(one.of)}`} onClick=${() => again(one)}>Send again</button>`}</td></tr>`)}</tbody>
      </table></div>`)}
    ${found?.forgotten > 0 && html`<p class="caption">${count(found.forgotten)} more failed earlier, and are listed no more</p>`}
  </dialog>`;
}

export function Webhooks({ endpoints, ask }) {
  const [chosen, choose] = useState(null), rows = Object.entries(endpoints).sort(([, one], [, other]) => other.failed_at - one.failed_at);
  const again = (id, endpoint) => ask({
    question: `Send ${plural(endpoint.failed, "event")} to ${endpoint.name} of ${endpoint.tenant} again?`, word: "Send again", work: () => sendAgain(id),
  });
  return html`<section aria-labelledby="webhooks"><h2 id="webhooks">Webhooks that fail</h2>
    ${!rows.length ? html`<p class="caption">No delivery has failed or is tried again.</p>` : html`
    <div class="scroll" tabindex="0" role="region" aria-label="endpoints that fail"><table>
      <thead><tr><th>endpoint</th><th>tenant</th><th>to</th><th>failed</th><th>waiting</th><th>last answer</th><th>at</th><th>next try</th><th><span class="hidden">again</span></th></tr></thead>
      <tbody>${rows.map(([id, one]) => html`<tr key=${id}><td><button type="button" class="link" onClick=${() => choose(id)}>${one.name}</button></td><td>${one.tenant}</td>
        <td>${one.address}${one.disabled_at ? " · switched off" : ""}</td><td data-figure=${`${id} failed`}>${count(one.failed)}</td><td>${count(one.waiting)}</td><td>${one.last_answer ?? "–"}</td>
        <td>${clock(one.failed_at)}</td><td>${next(one.next_try_at)}</td>
        <td>${one.failed > 0 && !one.disabled_at && html`<button type="button" aria-label=${`Send again to ${one.name} of ${one.tenant}`} onClick=${() => again(id, one)}>Send again</button>`}</td></tr>`)}</tbody>
    </table></div>`}
    ${chosen && html`<${Deliveries} key=${chosen} id=${chosen} endpoint=${endpoints[chosen]} ask=${ask} close=${() => choose(null)} />`}</section>`;
}
