// The fleet as this page knows it: a snapshot, and the differences since.
import { Blocks } from "./blocks.js";

const POINTS = 240, MOVES = 40;

// RFC 7396.
export function merge(target, patch) {
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete target[name];
    else if (typeof value === "object" && !Array.isArray(value)) target[name] = merge({ ...target[name] }, value);
    else target[name] = value;
  }
  return target;
}

export class Fleet {
  constructor(changed) {
    this.stats = null;
    this.maps = new Map();
    this.history = new Map(); // worker -> columns of its plots
    this.moves = []; // preemptions and takeovers, the latest first
    this.seen = new Map(); // job -> what this page saw of it
    this.connected = false;
    this.changed = changed;
  }

  follow() {
    const events = new EventSource("/v1/fleet/events");
    events.onopen = () => this.#tell(() => (this.connected = true));
    events.onerror = () => this.#tell(() => (this.connected = false));
    events.addEventListener("snapshot", (event) => this.#tell(() => this.#snapshot(JSON.parse(event.data))));
    events.addEventListener("change", (event) => this.#tell(() => this.#change(JSON.parse(event.data))));
  }

  #tell(work) {
    work();
    this.changed();
  }

  #snapshot({ stats, maps }) {
    this.maps.clear();
    this.#take(merge({}, stats), maps);
  }

  #change({ stats, maps }) {
    this.#take(merge({ ...this.stats }, stats), maps);
  }

  #take(stats, maps) {
    const before = this.stats;
    this.stats = stats;
    for (const [worker, news] of Object.entries(maps)) {
      if (news === null) this.maps.delete(worker);
      else {
        if (!this.maps.has(worker)) this.maps.set(worker, new Blocks());
        this.maps.get(worker).take(news);
      }
    }
    if (before) this.#compare(before, stats);
    this.#plot(stats.workers);
  }

  #compare(before, { jobs, workers }) {
    for (const [id, job] of Object.entries(jobs)) {
      const old = before.jobs[id];
      if (old === job) continue;
      if (job.tokens > 0 && !(old?.tokens > 0)) this.#see(id, "first token", job.worker);
      if (job.status === "running" && job.attempts > 1 && job.attempts !== (old?.attempts ?? job.attempts)) {
        this.#move("takeover", `${job.worker} goes on at token ${job.tokens}`, id);
      } else if (old?.status === "running" && job.status === "queued") {
        this.#move("handed back", `waits for a worker at token ${job.tokens}`, id);
      }
    }
    for (const [id, worker] of Object.entries(workers)) {
      const more = worker.preemptions - (before.workers[id]?.preemptions ?? worker.preemptions);
      if (more > 0) this.#move("preemption", `${more} on ${id}`);
      if (!before.workers[id]) this.#move("worker", `${id} came`);
    }
    for (const id of Object.keys(before.workers)) if (!workers[id]) this.#move("worker", `${id} left`);
  }

  #move(kind, words, job) {
    this.moves = [{ at: Date.now() / 1000, kind, words, job }, ...this.moves].slice(0, MOVES);
    if (job) this.#see(job, kind, words);
  }

  #see(job, kind, words) {
    if (this.seen.size > 2000) this.seen.delete(this.seen.keys().next().value);
    this.seen.set(job, [...(this.seen.get(job) ?? []), { at: Date.now() / 1000, kind, words }]);
  }

  #plot(workers) {
    for (const id of this.history.keys()) if (!workers[id]) this.history.delete(id);
    for (const [id, worker] of Object.entries(workers)) {
      if (!this.history.has(id)) this.history.set(id, [[], [], [], []]);
      const now = Date.now() / 1000, columns = this.history.get(id);
      if (now - (columns[0].at(-1) ?? 0) < 0.5) continue;
      const point = [now, worker.tokens_per_s ?? 0, worker.step_ms, worker.first_token_s ?? null];
      columns.forEach((column, place) => {
        column.push(point[place]);
        if (column.length > POINTS) column.shift();
      });
    }
  }
}
