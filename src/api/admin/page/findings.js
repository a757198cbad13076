// The strip on top: whether all is well, and the findings of the doctor that are in force.

import { ask } from "./api.js";
import { age, count, element, parts, say, whole } from "./dom.js";

/** The time between questions, unless a sample shows a change. Answers that take long are asked for less often. */
const PAUSE_MS = 5000;
const PAUSE_FACTOR = 50;
/** How often it is looked whether to ask. */
const LOOK_MS = 500;
const TIMEOUT_MS = 20_000;

/** The view that shows what a finding is about; the others lead to the documentation. */
const VIEWS = {
  overview: [
    "certificate_ends",
    "certificate_expired",
    "certificate_refused",
    "counters_evicted",
    "failed_calls",
    "memory_full",
    "memory_near_limit",
    "requests_unanswered",
    "slow_decisions",
    "store_unavailable",
  ],
  rules: [
    "control_plane_conflicts",
    "never_applies",
    "never_passes",
    "never_refuses",
    "no_limits",
    "no_rules",
    "overlay_misfits",
    "overlay_problems",
    "refuses_much",
    "rule_problems",
    "rule_warnings",
    "unknown_fields",
  ],
  cluster: [
    "clocks_apart",
    "degraded",
    "isolated",
    "links_rejected",
    "member_died",
    "member_unreachable",
    "members_of_other_rules",
    "members_of_other_versions",
    "not_serving",
    "slots_moving",
  ],
};
const TITLES = { overview: "Overview", rules: "Rules", cluster: "Cluster" };
/** Pages that a text names, as in `docs/metrics.md`. */
const PAGES = /docs\/([\w/-]+)\.md/g;

function link(id, docs) {
  const view = Object.keys(VIEWS).find((name) => VIEWS[name].includes(id));
  if (view) return element("a", { href: `#${view}` }, `See ${TITLES[view]}`);
  return element("a", { href: `${docs}admin.md#what-is-wrong` }, "Documentation");
}

/** A text in which the pages that it names are links. */
function linked(text, docs) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(PAGES)) {
    nodes.push(...parts(text.slice(end, found.index)));
    nodes.push(element("a", { href: `${docs}${found[1]}.md` }, found[0]));
    end = found.index + found[0].length;
  }
  return [...nodes, ...parts(text.slice(end))];
}

function item({ id, level, what, repair }, docs) {
  const kind = { error: "bad", warning: "warn", advice: "" }[level];
  return element(
    "li",
    {},
    element("span", { class: `badge ${kind}` }, level),
    element("strong", {}, id),
    ": ",
    whole("span", what),
    element("p", { class: "whole" }, "Repair: ", linked(repair, docs), " ", link(id, docs)),
  );
}

/** What findings are about and a sample shows, as a text. */
function situation(sample) {
  if (!sample) return "";
  const { rules: active, cluster, store, process } = sample;
  const members = (cluster?.members ?? []).map(({ id, state }) => [id, state]);
  const { generation, problems, overlay_problems: overlay } = active;
  return JSON.stringify([generation, problems, overlay, members, cluster?.isolated, store.shared?.state, process.not_ready]);
}

/** `root`: where the strip is; `history`: with the latest sample. */
export function strip(root, history) {
  const headline = element("p", { class: "headline", role: "status" });
  const list = element("ul", { class: "findings" });
  const summary = element("summary");
  const notes = element("ul", { class: "findings" });
  const advice = element("details", {}, summary, notes);
  root.append(headline, list, advice);
  root.hidden = true;
  let findings = null;
  let shown = "";

  const paint = (kind, text) => {
    root.hidden = false;
    root.className = `strip ${kind}`;
    say(headline, text);
  };

  const showList = () => {
    const text = JSON.stringify(findings);
    if (text === shown) return;
    shown = text;
    const docs = history.latest.process.docs;
    const each = (wanted) => findings.filter(({ level }) => (level === "advice") === wanted);
    list.replaceChildren(...each(false).map((one) => item(one, docs)));
    notes.replaceChildren(...each(true).map((one) => item(one, docs)));
    say(summary, count(each(true).length, "note"));
  };

  /** `silent`: for how long nothing was received, in milliseconds; 0 if the server answers. */
  const update = (silent) => {
    const sample = history.latest;
    if (!sample) return;
    const isSilent = silent > 0;
    list.hidden = isSilent || findings === null;
    advice.hidden = list.hidden || findings.every(({ level }) => level !== "advice");
    if (isSilent) {
      const since = new Date(Date.now() - silent).toLocaleTimeString("en-GB");
      paint("lost", `The server has not answered since ${since}, for ${age(silent / 1000)}. What is below is from then.`);
      return;
    }
    if (findings === null) return;
    showList();
    const number = (wanted) => findings.filter(({ level }) => level === wanted).length;
    const [errors, warnings] = [number("error"), number("warning")];
    const why = sample.process.not_ready;
    const texts = [
      why && `Not ready: ${why}`,
      errors > 0 && count(errors, "error"),
      warnings > 0 && count(warnings, "warning"),
    ].filter(Boolean);
    const kind = errors > 0 ? "bad" : texts.length > 0 ? "warn" : "good";
    paint(kind, texts.join(", ") || "All is well");
  };

  /** Asks again and again, while `isLive` says that the server answers. */
  const follow = async (isLive) => {
    let [due, asked] = [0, ""];
    for (;;) {
      const begin = performance.now();
      const state = situation(history.latest);
      if (isLive() && (begin >= due || state !== asked)) {
        asked = state;
        try {
          findings = (await ask("GET", "/doctor", [], AbortSignal.timeout(TIMEOUT_MS))).findings;
        } catch {
          // The stream of samples says why.
        }
        const end = performance.now();
        due = end + Math.max(PAUSE_MS, (end - begin) * PAUSE_FACTOR);
      }
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  };
  return { update, follow };
}
