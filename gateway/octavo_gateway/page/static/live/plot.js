// A small plot of one figure over time.
import { html, useEffect, useRef } from "../vendor/htm-preact.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");

export function Plot({ label, unit, times, values }) {
  const place = useRef(null), plot = useRef(null), drawn = useRef(0);
  const latest = values.at(-1);
  useEffect(() => {
    if (!window.uPlot) return undefined;
    const box = place.current, width = box.clientWidth;
    const colour = () => getComputedStyle(box).getPropertyValue("--accent").trim();
    plot.current = new window.uPlot({
      width, height: 56, legend: { show: false }, cursor: { show: false }, padding: [4, 0, 2, 0],
      axes: [{ show: false }, { show: false }],
      scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1e-3) * 1.1] } },
      series: [{}, { stroke: colour, width: 1.5, points: { show: false }, spanGaps: true }],
    }, [times, values], place.current);
    const sizes = new ResizeObserver(() => plot.current.setSize({ width: box.clientWidth, height: 56 }));
    sizes.observe(box);
    return () => { sizes.disconnect(); plot.current.destroy(); };
  }, []);
  useEffect(() => {
    if (!plot.current || (still.matches && Date.now() - drawn.current < 3000)) return;
    drawn.current = Date.now();
    plot.current.setData([times, values]);
  });
  const shown = latest === null || latest === undefined ? "–" : `${latest >= 10 ? Math.round(latest) : latest.toFixed(1)} ${unit}`;
  return html`<figure class="plot">
    <figcaption>${label} <b>${shown}</b></figcaption>
    <div ref=${place} aria-hidden="true"></div>
  </figure>`;
}
