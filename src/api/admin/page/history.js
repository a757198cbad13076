// What the page knows: the last five minutes, at first as the server kept them, and the last seconds of each rule.

const KEPT_MS = 5 * 60 * 1000;
/** Rates are means of this time. */
export const RATE_MS = 10 * 1000;

/** Whether the process was started again, or its clock was put back. */
function isReset(before, now) {
  return now.at < before.at || now.requests.count < before.requests.count;
}

function trim(entries, at, span) {
  let old = 0;
  // One entry beyond the span stays, as the base of the rate.
  while (old + 1 < entries.length && at - entries[old + 1].at >= span) old += 1;
  entries.splice(0, old);
}

/** The upper bound of the durations up to a quantile, from cumulative buckets of two samples. */
function quantile(before, now, part) {
  const count = now.count - before.count;
  if (count <= 0) return null;
  const found = now.up_to.findIndex(([, number], index) => number - before.up_to[index][1] >= part * count);
  return found < 0 ? Infinity : now.up_to[found][0];
}

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.samples = [];
    this.points = [];
    /** What the next point is counted from. */
    this.counted = null;
    this.rules = new Map();
    this.rulesHash = null;
  }

  get latest() {
    return this.samples.at(-1) ?? null;
  }

  /** A line of the stream: the points that the server kept, or a sample. */
  add(line) {
    if (line.points) this.addPast(line.points.map((point) => ({ ...point, at: Date.parse(point.at) })));
    else this.addSample({ ...line, at: Date.parse(line.at) });
  }

  /** Adds points as far as no sample told them: from before the first one, and from while there was no stream. */
  addPast(kept) {
    const newest = kept.at(-1);
    if (!newest) return;
    if (this.counted && this.counted.at <= newest.at && isReset(this.counted, newest)) this.clear();
    const [first, last] = [this.points[0]?.at ?? Infinity, this.points.at(-1)?.at ?? -Infinity];
    const past = kept.slice(1).flatMap((now, index) => this.point(kept[index], now));
    this.points.unshift(...past.filter(({ at }) => at < first));
    this.points.push(...past.filter(({ at }) => at >= first && at > last));
    if (!this.counted || this.counted.at < newest.at) this.counted = newest;
  }

  addSample(sample) {
    if (this.counted && isReset(this.counted, sample)) this.clear();
    if (this.latest && sample.at === this.latest.at) this.samples.pop();
    this.samples.push(sample);
    trim(this.samples, sample.at, RATE_MS);
    if (this.counted) this.points.push(...this.point(this.counted, sample));
    this.counted = sample;
    trim(this.points, sample.at, KEPT_MS);
    this.addRules(sample);
  }

  /** A list with the point of this time; an empty one if no time is between them. */
  point(before, now) {
    const time = (now.at - before.at) / 1000;
    if (time <= 0) return [];
    // Rules that are replaced take their decisions with them.
    const each = (figure) => Math.max(0, now.decisions[figure] - before.decisions[figure]) / time;
    return [
      {
        at: now.at,
        passed: each("ok"),
        refused: each("over_limit"),
        p50: quantile(before.requests, now.requests, 0.5),
        p99: quantile(before.requests, now.requests, 0.99),
      },
    ];
  }

  /** The growth of a figure each second. */
  growth(figure) {
    const [first, last] = [this.samples[0], this.latest];
    if (!first || first === last) return null;
    return Math.max(0, figure(last) - figure(first)) / ((last.at - first.at) / 1000);
  }

  latency(part) {
    const [first, last] = [this.samples[0], this.latest];
    return first && first !== last ? quantile(first.requests, last.requests, part) : null;
  }

  addRules(sample) {
    const each = sample.each_rule;
    if (!each) return;
    if (each.hash !== this.rulesHash) {
      this.rules.clear();
      this.rulesHash = each.hash;
    }
    for (const [index, totals] of each.changed) this.addRule(index, totals, sample.at);
  }

  addRule(index, totals, at) {
    const seen = this.rules.get(index) ?? [];
    seen.push({ at, totals });
    trim(seen, at, RATE_MS);
    this.rules.set(index, seen);
  }

  /**
   * The totals of a rule of the set with this hash so far, and each second; `listed` are its totals when the list was
   * read.
   */
  rule(hash, index, listed) {
    const seen = hash === this.rulesHash ? this.rules.get(index) : undefined;
    const at = this.latest?.at;
    if (!seen || at === undefined) return { totals: listed, rates: listed.map(() => 0) };
    const last = seen.at(-1);
    const begin = at - RATE_MS;
    // The totals at the begin of the span: those of the last entry before it.
    const first = seen.findLast((entry) => entry.at <= begin) ?? seen[0];
    const time = Math.max(1, (at - Math.max(begin, first.at)) / 1000);
    return { totals: last.totals, rates: last.totals.map((total, which) => (total - first.totals[which]) / time) };
  }

  /** What is known of a key of a list. */
  key(list, key) {
    return this.latest?.top[list].find((one) => one.key === key);
  }
}
