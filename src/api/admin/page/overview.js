// Overview: what the service does now.

import { chart } from "./chart.js";
import { deaths, grouped } from "./cluster.js";
import { NO_BREAK, bytes, count, element, number, perSecond, say, seconds, share, whole } from "./dom.js";

const EXPIRY_SOON_S = 30 * 86400;
/** The number of keys, and of rules, that are listed. */
const LISTED_MAX = 5;

function upTo(value) {
  if (value === null) return "–";
  return value === Infinity ? `above${NO_BREAK}${seconds(1)}` : `≤${NO_BREAK}${seconds(value)}`;
}

function card(title) {
  const [figure, note] = [element("p", { class: "figure" }, "–"), element("p", { class: "soft" })];
  const root = element("section", { class: "card" }, element("h3", {}, title), figure, note);
  const set = (text, more = "", kind = "") => {
    say(figure, text);
    say(note, more);
    figure.className = `figure ${kind}`;
  };
  return { root, set, note };
}

/** A list of names with their rates; `choose` makes them buttons. */
function ranking(title, empty, more, choose) {
  const list = element("ol", { class: "ranking" });
  const root = element("section", { class: "card" }, element("h3", {}, title), list, element("p", {}, more));
  const nodes = new Map();
  const node = (name) => {
    const rate = element("span", { class: "rate" });
    const isCut = name.endsWith("…");
    const label = choose
      ? whole("button", name, { class: "link mono", disabled: isCut, click: () => choose(name) })
      : whole("code", name);
    return { root: element("li", {}, label, " ", rate), rate };
  };
  /** `entries`: pairs of a name and its rate. */
  const set = (entries) => {
    const shown = entries.slice(0, LISTED_MAX);
    for (const [name] of shown) if (!nodes.has(name)) nodes.set(name, node(name));
    for (const name of nodes.keys()) if (!shown.some(([other]) => other === name)) nodes.delete(name);
    for (const [name, rate] of shown) say(nodes.get(name).rate, perSecond(rate));
    const wanted = shown.length > 0 ? shown.map(([name]) => nodes.get(name).root) : [element("li", { class: "soft" }, empty)];
    // Only if the order changes, so that the focus and a selection stay.
    const isSame = wanted.length === list.children.length && wanted.every((one, index) => one === list.children[index]);
    if (!isSame && !list.contains(document.activeElement)) list.replaceChildren(...wanted);
  };
  return { root, set };
}

export function overview(root, { history, chooseKey }) {
  const decisions = chart(
    "Decisions each second",
    [
      ["passed", (point) => point.passed],
      ["refused", (point) => point.refused],
    ],
    { format: perSecond, mark: perSecond, least: 1 },
  );
  const latency = chart(
    "Time to decide",
    [
      ["p50", (point) => point.p50],
      ["p99", (point) => point.p99],
    ],
    { format: upTo, mark: seconds, least: 0.0001 },
  );
  const [passed, refused, slow, memory] = [card("Passed"), card("Refused"), card("Time to decide"), card("Counters")];
  const [rules, unanswered, certificates, cluster] = [
    card("Rules"),
    card("Requests without a decision"),
    card("Certificates"),
    card("Cluster"),
  ];
  const none = "None in the last 10 seconds";
  const refusedKeys = ranking("Most refused keys", none, element("a", { href: "#keys" }, "All keys"), (key) =>
    chooseKey("denied", key),
  );
  const refusingRules = ranking("Rules that refuse most", none, element("a", { href: "#rules" }, "All rules"));
  const meter = element("meter", { min: 0, max: 1, high: 0.9, optimum: 0, "aria-label": "Memory of counters in use" });
  memory.note.after(meter);
  const [first, others] = [
    [passed, refused, slow],
    [memory, rules, unanswered, certificates, cluster],
  ];
  const tiles = (cards) =>
    element(
      "div",
      { class: "cards tiles" },
      cards.map((one) => one.root),
    );
  root.append(
    element("p", { class: "soft" }, "Rates and times are those of the last 10 seconds."),
    tiles(first),
    element("div", { class: "cards" }, refusedKeys.root, refusingRules.root),
    element("div", { class: "cards" }, decisions.root, latency.root),
    tiles(others),
  );

  const update = () => {
    const sample = history.latest;
    if (!sample) return;
    const each = (figure) => history.growth(figure);
    const text = (value) => (value === null ? "–" : perSecond(value));
    const [ok, over] = [each((one) => one.decisions.ok), each((one) => one.decisions.over_limit)];
    passed.set(text(ok), `${number(sample.decisions.ok)} since the start`);
    refused.set(
      text(over),
      `${share(over ?? 0, (ok ?? 0) + (over ?? 0))} of all; ${number(sample.decisions.over_limit)} since the start`,
    );
    slow.set(`p99${NO_BREAK}${upTo(history.latency(0.99))}`, `p50${NO_BREAK}${upTo(history.latency(0.5))}`);
    const { live, bytes: used, bytes_max: most, refused_full: full } = sample.store;
    const fullNote = full > 0 ? `; ${number(full)} charges refused for lack of memory` : "";
    memory.set(number(live), `${bytes(used)} of ${bytes(most)}${fullNote}`, full > 0 ? "warn" : "");
    meter.value = most > 0 ? used / most : 0;
    const keys = sample.top.denied.filter(({ rate }) => rate > 0).sort((one, other) => other.rate - one.rate);
    refusedKeys.set(keys.map(({ key, rate }) => [key, rate]));
    refusingRules.set(sample.top.rules.map(({ rule, rate }) => [rule, rate]));
    updateRules(sample.rules);
    const { no_rules: without, joining, overloaded, invalid } = sample.requests;
    const failed = without + joining + overloaded + invalid;
    const reasons = [
      [without, "no rules"],
      [joining, "joining"],
      [overloaded, "overloaded"],
      [invalid, "invalid"],
    ]
      .filter(([requests]) => requests > 0)
      .map(([requests, reason]) => `${number(requests)} ${reason}`);
    unanswered.set(number(failed), reasons.join(", ") || "none since the start");
    updateCertificates(sample);
    updateCluster(sample);
    decisions.update(history.points, sample.at);
    latency.update(history.points, sample.at);
  };

  const updateRules = (state) => {
    const problems = state.problems + state.overlay_problems;
    const where = `generation ${state.generation}: ${count(state.rules, "rule")} in ${count(state.domains, "domain")}`;
    if (problems > 0) rules.set(`${count(problems, "problem")}`, `${where} stay active; see Rules`, "bad");
    else if (state.generation === 0) rules.set("none", "no rules are loaded yet", "bad");
    else rules.set("active", state.warnings > 0 ? `${where}; ${count(state.warnings, "warning")}` : where, "good");
  };

  const updateCertificates = ({ certificates: listed, at }) => {
    if (listed.length === 0) return certificates.set("none", "the listeners have no TLS");
    const left = (one) => (Date.parse(one.expires_at) - at) / 1000;
    const first = listed.reduce((one, other) => (left(other) < left(one) ? other : one));
    const time = left(first);
    const kind = time <= 0 ? "bad" : time < EXPIRY_SOON_S ? "warn" : "good";
    const ends = `${first.listener}, ${first.expires_at.slice(0, 10)}`;
    certificates.set(time <= 0 ? "expired" : `end in ${seconds(time)}`, `the first to end: ${ends}`, kind);
  };

  const updateCluster = ({ cluster: view, store }) => {
    if (store.shared) {
      const { state, replicas } = store.shared;
      return cluster.set(
        `store ${state}`,
        `${count(replicas, "replica")} in the store`,
        state === "ready" ? "good" : "bad",
      );
    }
    if (!view) return cluster.set("single replica", "cluster.listen is off");
    const groups = grouped(view.members);
    const [serving, died] = [groups.serving.length, deaths(groups)];
    const present = serving + groups.others.length + groups.dead.length;
    const texts = [view.isolated && "isolated", died, `this one ${view.state}`, `${number(view.moving)} slots move`];
    cluster.set(
      `${number(serving)} of ${number(present)} serve`,
      texts.filter(Boolean).join("; "),
      view.isolated || died ? "bad" : "",
    );
  };

  return { update };
}
