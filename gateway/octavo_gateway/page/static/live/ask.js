// Asks once more before anything is changed.
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";

export function Ask({ question, word, work, done }) {
  const dialog = useRef(null);
  const [problem, tell] = useState(""), [busy, work_on] = useState(false);
  useEffect(() => dialog.current.showModal(), []);
  const go = async () => {
    work_on(true);
    try {
      await work();
      done();
    } catch (error) {
      tell(error.message);
      work_on(false);
    }
  };
  return html`<dialog ref=${dialog} class="ask" aria-labelledby="question" onClose=${done} onCancel=${done}>
    <p id="question">${question}</p>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <div class="buttons">
      <button type="button" autofocus onClick=${done}>Leave it</button>
      <button type="button" class="danger" disabled=${busy} onClick=${go}>${word}</button>
    </div>
  </dialog>`;
}
