// A canvas of memory of one kind. It draws what changed.
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { CACHED, ELSEWHERE, FIRST_OWNER, PINNED, QUARANTINED, SHARED } from "./blocks.js";
import { hue } from "./format.js";

const HEIGHT = 180;

// Columns and size of a cell so that all blocks fit.
function layout(blocks, width) {
  const size = Math.max(1, Math.min(12, Math.floor(Math.sqrt((width * HEIGHT) / Math.max(1, blocks)))));
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, shown: blocks, height: Math.ceil(blocks / columns) * size };
}

function paint(pen, blocks, begin, end, { size, columns, shown }, colours) {
  const gap = size > 3 ? 1 : 0;
  for (let block = begin; block < Math.min(end, shown); block++) {
    const code = blocks.cells[block], state = code & 0x3fff;
    const x = (block % columns) * size, y = Math.floor(block / columns) * size;
    const edge = size - gap;
    if (state === ELSEWHERE) {
      pen.clearRect(x, y, edge, edge);
      continue;
    }
    const job = blocks.job(code);
    if (job) pen.fillStyle = `hsl(${hue(job)} 65% ${block < blocks.device ? colours.light : colours.dim}%)`;
    else if (state === CACHED) pen.fillStyle = colours.cached;
    else if (state === QUARANTINED) pen.fillStyle = colours.quarantined;
    else pen.fillStyle = state >= FIRST_OWNER ? colours.used : colours.free;
    pen.fillRect(x, y, edge, edge);
    if (code & SHARED) {
      pen.fillStyle = colours.stripe;
      if (size < 4) pen.fillRect(x, y, edge, Math.max(1, edge / 2));
      else for (let at = 0; at < edge; at += 4) pen.fillRect(x + at, y, 2, edge);
    }
    if (code & PINNED) {
      pen.fillStyle = colours.pinned;
      pen.fillRect(x, y, edge, Math.max(1, Math.floor(edge / 3)));
    }
  }
}

function coloursOf(element) {
  const style = getComputedStyle(element);
  const names = ["free", "cached", "quarantined", "used", "stripe", "pinned", "light", "dim"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--block-${name}`).trim()]));
}

export function BlockCanvas({ blocks, worker, choose }) {
  const canvas = useRef(null), place = useRef(null);
  const [words, say] = useState("");
  useEffect(() => {
    const element = canvas.current, width = element.parentElement.clientWidth;
    const shape = layout(blocks.extent(), width), pen = element.getContext("2d");
    const theme = matchMedia("(prefers-color-scheme: dark)").matches;
    const key = `${shape.size} ${shape.columns} ${shape.shown} ${theme}`;
    const colours = coloursOf(element);
    if (blocks.redraw || place.current?.key !== key) {
      const scale = devicePixelRatio || 1;
      element.width = width * scale;
      element.height = shape.height * scale;
      element.style.height = `${shape.height}px`;
      pen.scale(scale, scale);
      paint(pen, blocks, 0, blocks.cells.length, shape, colours);
    } else {
      for (let at = 0; at < blocks.changed.length; at += 2) {
        paint(pen, blocks, blocks.changed[at], blocks.changed[at + 1], shape, colours);
      }
    }
    blocks.redraw = false;
    blocks.changed = [];
    place.current = { key, shape };
  });
  const blockAt = (event) => {
    const { size, columns } = place.current.shape;
    const block = Math.floor(event.offsetY / size) * columns + Math.floor(event.offsetX / size);
    return block < place.current.shape.shown ? block : null;
  };
  const found = blocks.counts();
  const behind = blocks.cells.length - blocks.extent();
  const told = Object.entries(found).filter(([, number]) => number).map(([kind, number]) => `${number} ${kind}`);
  return html`<div class="map">
    <canvas ref=${canvas} role="img" aria-label=${`${blocks.all} of ${worker}: ${told.join(", ")}`}
      onMouseMove=${(event) => { const block = blockAt(event); say(block === null ? "" : blocks.describe(block)); }}
      onMouseLeave=${() => say("")}
      onClick=${(event) => {
        const block = blockAt(event), job = block === null ? null : blocks.job(blocks.cells[block]);
        if (job) choose(job);
      }}></canvas>
    <p class="caption">${words || `${blocks.all}: ${told.join(" · ")}${behind ? `; ${behind} free ones behind these are not drawn` : ""}`}</p>
  </div>`;
}
