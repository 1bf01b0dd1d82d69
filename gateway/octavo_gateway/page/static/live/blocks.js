// The memory of one worker: a code for each block and slot, as /v1/fleet/events sends them.
export const FREE = 0, CACHED = 1, QUARANTINED = 2, ELSEWHERE = 3, FIRST_OWNER = 16, PINNED = 0x4000, SHARED = 0x8000;
const OWNER = 0x3fff;

// What a worker may have, in the order of its map.
const KINDS = [
  { members: (map) => [map.device, map.host], one: "block", all: "KV blocks" },
  { members: (map) => map.windows, one: "window block", all: "blocks of layers with a window" },
  { members: (map) => map.states, one: "slot", all: "slots for states" },
];

export class Blocks {
  constructor() {
    this.regions = [];
    this.owners = {};
  }

  take(news) {
    for (const [number, job] of Object.entries(news.owners)) {
      if (job === null) delete this.owners[number];
      else this.owners[number] = job;
    }
    if (news.runs) this.#whole(news);
    const changes = news.changes ?? [];
    for (let at = 0; at < changes.length; at += 3) this.#fill(...changes.slice(at, at + 3));
  }

  #whole(map) {
    this.owners = { ...map.owners };
    this.regions = KINDS.filter((kind) => kind.members(map)).map((kind) => new Region(kind, kind.members(map), this.owners));
    for (let at = 0, begin = 0; at < map.runs.length; at += 2) {
      this.#fill(begin, map.runs[at], map.runs[at + 1]);
      begin += map.runs[at];
    }
    for (const region of this.regions) region.redraw = true;
  }

  // A run goes on from one kind of memory to the next.
  #fill(begin, length, code) {
    for (const region of this.regions) {
      region.fill(Math.max(0, begin), Math.min(begin + length, region.cells.length), code);
      begin -= region.cells.length;
    }
  }
}

// Memory of one kind: cells of the device, then of the host.
class Region {
  constructor({ one, all }, [device, host], owners) {
    this.one = one;
    this.all = all;
    this.cells = new Uint16Array(device + host);
    this.owners = owners;
    this.device = device;
    this.redraw = true; // all of it
    this.changed = []; // begins and ends of what changed since it was drawn
  }

  fill(begin, end, code) {
    if (begin >= end) return;
    this.cells.fill(code, begin, end);
    this.changed.push(begin, end);
    if (this.changed.length > 20000) this.redraw = true;
  }

  job(code) {
    return this.owners[code & OWNER];
  }

  // What a block is, in words.
  describe(block) {
    const code = this.cells[block];
    const words = [block < this.device ? `${this.one} ${block}` : `host ${this.one} ${block - this.device}`];
    const job = this.job(code);
    if (job) words.push(`job ${job}`);
    else words.push(["free", "cached", "quarantined", "with the other group"][code & OWNER] ?? "in use");
    if (job && block >= this.device) words.push("swapped");
    if (code & SHARED) words.push("shared");
    if (code & PINNED) words.push("pinned");
    return words.join(", ");
  }

  // How many of the first blocks are worth a look: behind them all are free or elsewhere. In few steps, so that cells keep their size.
  extent() {
    let end = this.cells.length;
    while (end > 0 && [FREE, ELSEWHERE].includes(this.cells[end - 1])) end--;
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
      else if (state === FREE) found.free++;
    }
    return found;
  }
}
