// The blocks of one worker: a code each, as /v1/fleet/events sends them.
export const FREE = 0, CACHED = 1, QUARANTINED = 2, FIRST_OWNER = 16, PINNED = 0x4000, SHARED = 0x8000;
const OWNER = 0x3fff;

export class Blocks {
  constructor() {
    this.cells = new Uint16Array(0);
    this.owners = {};
    this.device = 0;
    this.redraw = true; // all of it
    this.changed = []; // begins and ends of what changed since it was drawn
  }

  take(news) {
    for (const [number, job] of Object.entries(news.owners)) {
      if (job === null) delete this.owners[number];
      else this.owners[number] = job;
    }
    if (news.runs) this.#whole(news);
    const changes = news.changes ?? [];
    for (let at = 0; at < changes.length; at += 3) {
      const [begin, length, code] = changes.slice(at, at + 3);
      this.cells.fill(code, begin, begin + length);
      this.changed.push(begin, begin + length);
    }
    if (this.changed.length > 20000) this.redraw = true;
  }

  #whole({ runs, device, host, owners }) {
    this.owners = { ...owners };
    this.device = device;
    this.cells = new Uint16Array(device + host);
    for (let at = 0, begin = 0; at < runs.length; at += 2) {
      this.cells.fill(runs[at + 1], begin, begin + runs[at]);
      begin += runs[at];
    }
    this.redraw = true;
  }

  job(code) {
    return this.owners[code & OWNER];
  }

  // What a block is, in words.
  describe(block) {
    const code = this.cells[block];
    const words = [block < this.device ? `block ${block}` : `host block ${block - this.device}`];
    const job = this.job(code);
    if (job) words.push(`job ${job}`);
    else words.push(["free", "cached", "quarantined"][code & OWNER] ?? "in use");
    if (job && block >= this.device) words.push("swapped");
    if (code & SHARED) words.push("shared");
    if (code & PINNED) words.push("pinned");
    return words.join(", ");
  }

  // How many of the first blocks are worth a look: behind them all are free. In few steps, so that cells keep their size.
  extent() {
    let end = this.cells.length;
    while (end > 0 && this.cells[end - 1] === FREE) end--;
    let shown = 512;
    while (shown < end) shown *= 2;
    return Math.min(shown, this.cells.length);
  }

  // How many blocks there are of each kind.
  counts() {
    const found = { free: 0, cached: 0, quarantined: 0, used: 0, shared: 0, pinned: 0, swapped: 0 };
    for (let block = 0; block < this.cells.length; block++) {
      const code = this.cells[block], state = code & OWNER;
      if (code & PINNED) found.pinned++;
      if (block >= this.device) found.swapped += state !== FREE;
      else if (state >= FIRST_OWNER) {
        found.used++;
        if (code & SHARED) found.shared++;
      } else if (state === CACHED) found.cached++;
      else if (state === QUARANTINED) found.quarantined++;
      else found.free++;
    }
    return found;
  }
}
