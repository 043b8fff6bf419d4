// The fleet as it was told: a layout that changes seldom, and four bytes for each replica.

const UNKNOWN = 255;
export const WELL = new Set(["ready", "loading", "draining"]);
const SERVING = new Set(["ready", "degraded"]);

export class Fleet {
  constructor() {
    this.layout = null;
    this.cells = new Uint8Array();
    this.glance = null;
    this.tasks = [];
  }

  take(glance) {
    if (glance.layout) {
      this.layout = glance.layout;
      let at = 0;
      this.tasks = glance.layout.tasks.map(([pool, node, leaf, version, first, count], index) => {
        const task = {
          index, node, first, count, at, pool: glance.layout.pools[pool],
          switch: glance.layout.switches[leaf], version: glance.layout.versions[version], versionNumber: version,
        };
        at += count;
        return task;
      });
    }
    this.cells = Uint8Array.from(atob(glance.cells), (letter) => letter.charCodeAt(0));
    const unheard = new Set(glance.unheard);
    for (const task of this.tasks) task.heard = !unheard.has(task.index);
    this.glance = glance;
  }

  get size() {
    return this.cells.length / 4;
  }

  // The replica in this slot of a task.
  replica(task, slot) {
    const at = 4 * (task.at + slot - task.first);
    const [state, load, kv, ttft] = this.cells.subarray(at, at + 4);
    const name = this.layout.states[state];
    return {
      task, slot,
      state: task.heard || name === "missing" ? name : "silent",
      serving: task.heard && SERVING.has(name),
      load: load / 100,
      kv: kv === UNKNOWN ? null : kv / 100,
      ttft: ttft === UNKNOWN ? null : (2 ** (ttft / 20) - 1) / 10,
    };
  }

  *replicas() {
    for (const task of this.tasks) {
      for (let slot = task.first; slot < task.first + task.count; slot += 1) yield this.replica(task, slot);
    }
  }

  find(pool, slot) {
    const task = this.tasks.find((one) => one.pool === pool && one.first <= slot && slot < one.first + one.count);
    return task ? this.replica(task, slot) : null;
  }

  counts() {
    const found = new Map();
    for (const one of this.replicas()) found.set(one.state, (found.get(one.state) ?? 0) + 1);
    return found;
  }
}
