// Rules: the tree of domains and rules with their decisions, and problems of the files at their lines.

import { ask } from "./api.js";
import { choice, count, element, hideEmptyColumns, instant, number, parts, perSecond, say, share, table, whole } from "./dom.js";

const SEARCH_DELAY_MS = 200;
const DEPTH_MAX = 3;
const COLUMNS = [
  ["Rule"],
  ["Limit"],
  ["Decisions", "number"],
  ["Refused", "number"],
  ["Near the limit", "number"],
  ["Shadow: would refuse", "number"],
  ["Candidate: would refuse", "number"],
];
const NONE = [0, 0, 0, 0, 0, 0];

/** The rules of each domain, each with its depth below listed rules and the rest of its path. */
function tree(rules) {
  const domains = new Map();
  let above = [];
  for (const rule of rules) {
    const listed = domains.get(rule.domain) ?? [];
    if (listed.length === 0) above = [];
    // A rule follows those that it is nested in.
    while (above.length > 0 && !rule.path.startsWith(`${above.at(-1)}.`)) above.pop();
    const parent = `${above.at(-1) ?? rule.domain}.`;
    const label = rule.path.startsWith(parent) ? rule.path.slice(parent.length) : rule.path;
    listed.push({ rule, label, depth: Math.min(above.length, DEPTH_MAX) });
    above.push(rule.path);
    domains.set(rule.domain, listed);
  }
  return domains;
}

function problem({ at, line, column, what, lines }) {
  const text = lines.flatMap(([number, source]) => {
    const shown = `${String(number).padStart(5)} ${source}\n`;
    return number === line ? [element("span", { class: "hit" }, shown), `${" ".repeat(5 + column)}^\n`] : [shown];
  });
  const source = lines.length > 0 ? element("pre", { tabindex: 0, "aria-label": `Lines around ${at}` }, text) : null;
  return element("li", {}, element("code", {}, at), `: ${what}`, source);
}

export function rules(root, { history }) {
  const state = element("p", { class: "whole" });
  const problems = element("section", { class: "card", "aria-label": "Problems" });
  const search = element("input", { id: "search", type: "search", autocomplete: "off", spellcheck: "false" });
  const span = choice("span", [
    ["now", "the last 10 seconds"],
    ["all", "all time since the start"],
  ]);
  const found = element("p", { class: "soft", role: "status" });
  const list = element("div");
  root.append(
    state,
    problems,
    element(
      "div",
      { class: "row" },
      element("div", { class: "field" }, element("label", { for: "search" }, "Search"), search),
      element("div", { class: "field" }, element("label", { for: "span" }, "Figures of"), span),
    ),
    found,
    list,
  );
  problems.hidden = true;
  let shown = [];
  let status = null;
  let version = null;
  let asked = 0;
  let delay = null;

  const load = async () => {
    asked += 1;
    const turn = asked;
    try {
      const answer = await ask("GET", "/rules", [["list", search.value]]);
      // Only the answer to the latest question is shown.
      if (turn !== asked) return;
      status = answer;
      showState();
      showList();
    } catch (error) {
      if (turn === asked) say(state, `The rules cannot be read: ${error.message}`);
    }
  };

  const showState = () => {
    const loaded = status.loaded_at ? `, loaded at ${instant(status.loaded_at)}` : "";
    const control = status.version ? `, version ${status.version} of the control plane` : "";
    const source = status.source;
    const confirmed = source.confirmed_at ? `, which had them at ${instant(source.confirmed_at)}` : "";
    const copy = source.from_copy ? "; they are those of the copy, because the server has not answered" : "";
    const from = source.kind === "url" ? ` From ${source.name}${confirmed}${copy}.` : "";
    state.replaceChildren(
      ...parts(`Generation ${status.generation}${loaded}${control}, hash ${status.hash ?? "–"}.${from}`),
    );
    const error = status.last_error;
    const texts = [...(status.overlay_problems ?? []), ...status.warnings];
    problems.hidden = !error && texts.length === 0;
    problems.replaceChildren();
    if (error) {
      const more = error.problems.length - error.shown.length;
      problems.append(
        element("h3", { class: "bad" }, `${count(error.problems.length, "problem")}: these contents are not active`),
        element("p", {}, `Read at ${instant(error.at)}. The rules of generation ${status.generation} stay active.`),
        element("ul", {}, error.shown.map(problem), more > 0 ? element("li", {}, `and ${number(more)} more`) : null),
      );
    }
    if (texts.length > 0) {
      problems.append(
        element("h3", { class: "warn" }, "Warnings"),
        element(
          "ul",
          {},
          texts.map((text) => element("li", {}, text)),
        ),
      );
    }
  };

  const row = ({ rule, label, depth }, make) => {
    const cells = COLUMNS.slice(2).map(() => element("span"));
    const modes = [
      [rule.shadow_mode, "shadow"],
      [rule.quota_mode, "quota"],
    ].filter(([on]) => on);
    const badges = modes.map(([, mode]) => element("span", { class: "badge warn" }, mode));
    const more = [rule.candidate && `candidate: ${rule.candidate}`];
    if (rule.replaces.length > 0) more.push(`replaces ${rule.replaces.join(", ")}`);
    if (rule.groups.length > 0) more.push(`groups ${rule.groups.join(", ")}`);
    if (rule.quotas.length > 0) more.push(`quotas ${rule.quotas.join(", ")}`);
    const limit = element(
      "span",
      {},
      whole("span", rule.limit),
      more.filter(Boolean).map((text) => whole("span", text, { class: "at" })),
    );
    const name = element("div", { class: `d${depth}` }, whole("code", label), " ", badges);
    name.append(whole("span", rule.at, { class: "at" }));
    shown.push({ rule, cells });
    const made = make(name, [limit, ...cells]);
    // They stay empty.
    if (!rule.shadow_mode) cells[3].parentElement.classList.add("unused");
    if (!rule.candidate) cells[4].parentElement.classList.add("unused");
    return made;
  };

  const showList = () => {
    shown = [];
    const domains = [];
    for (const [domain, listed] of tree(status.list.rules)) {
      const { root: scroll, body, row: make } = table(`Rules of ${domain}`, COLUMNS);
      body.append(...listed.map((one) => row(one, make)));
      domains.push(
        element(
          "details",
          { class: "card", open: true },
          element("summary", {}, element("strong", {}, domain), ` (${count(listed.length, "rule")})`),
          scroll,
        ),
      );
    }
    list.replaceChildren(...domains);
    const all = history.latest?.rules.rules ?? status.list.found;
    const cut =
      status.list.found > shown.length ? `; the first ${number(shown.length)} are shown, search for the others` : "";
    say(found, `${number(status.list.found)} of ${number(all)} rules${cut}`);
    showFigures();
  };

  const showFigures = () => {
    if (!status) return;
    for (const { rule, cells } of shown) {
      const seen = history.rule(status.list.hash, rule.index, rule.totals ?? NONE);
      const each = span.value === "now";
      const [ok, over, hits, near, shadow, candidate] = each ? seen.rates : seen.totals;
      const all = ok + over;
      const format = each ? perSecond : number;
      const would = (on, denied) => (on ? `${format(denied)} (${share(denied, all)})` : "–");
      say(cells[0], format(all));
      say(cells[1], `${format(over)} (${share(over, all)})`);
      say(cells[2], share(near, hits));
      say(cells[3], would(rule.shadow_mode, shadow));
      say(cells[4], would(rule.candidate, candidate));
    }
    hideEmptyColumns([...list.querySelectorAll("table")], COLUMNS.length);
  };

  search.addEventListener("input", () => {
    clearTimeout(delay);
    delay = setTimeout(load, SEARCH_DELAY_MS);
  });
  span.addEventListener("change", showFigures);

  const update = () => {
    const sample = history.latest;
    if (!sample) return;
    const { generation, problems: wrong, overlay_problems: overlay, loaded_at: at } = sample.rules;
    const now = [sample.each_rule?.hash, generation, wrong, overlay, at].join();
    if (now !== version) {
      version = now;
      load();
    }
    showFigures();
  };
  return { update };
}
