// Lists of keys: those that were denied most often, and those with quotas; with the explanation of the chosen one.

import { ask } from "./api.js";
import { count, element, number, perSecond, say, table, whole } from "./dom.js";
import { explainer } from "./explain.js";

// As in the style sheet: there is no room beside the list.
const NARROW = matchMedia("(max-width: 60rem)");

/** Domain and descriptor of a key; null if its text was cut. */
function split(key, domains) {
  if (key.endsWith("…")) return null;
  const fitting = domains.filter((domain) => key.startsWith(`${domain} `));
  const longest = fitting.reduce((one, other) => (other.length > one.length ? other : one), "");
  const domain = longest || key.slice(0, Math.max(0, key.indexOf(" ")));
  return [domain, key.slice(domain.length + 1)];
}

const DENIED = {
  list: "denied",
  label: "Most denied keys",
  columns: [["Key"], ["Denied each second", "number"], ["Since the start", "number"]],
  intro:
    "The keys that were denied most often since the start, on this replica. Choose one to see why it is refused; asking charges nothing. The order stays while the pointer or the focus is in the list.",
  empty: "No key was denied yet.",
};
const QUOTAS = {
  list: "quotas",
  label: "Keys most requested at clients with quotas",
  columns: [["Key"], ["Requested each second", "number"], ["Since the start", "number"]],
  intro:
    "The keys that clients with quotas, as Envoys, have reported most requests of since the start. Choose one to see how its limit is divided. Reports come every few seconds.",
  empty: "No client has reported requests of a limit that is divided.",
};

export function keys(root, context) {
  return listOf(root, context, DENIED);
}

export function quotas(root, context) {
  return listOf(root, context, QUOTAS);
}

function listOf(root, { history }, kind) {
  const rows = new Map();
  const note = element("p", { class: "soft" });
  const {
    root: list,
    body,
    row: make,
  } = table(kind.label, kind.columns);
  list.classList.add("keys");
  const answer = element(
    "section",
    { class: "card answer", tabindex: -1, "aria-label": "Explanation" },
    element("h3", {}, "Explanation"),
  );
  const hint = element("p", { class: "soft" }, "No key is chosen.");
  answer.append(hint);
  const explain = explainer(answer);
  const beside = element("div", { class: "split" }, element("section", { class: "card" }, list), answer);
  const close = element("button", { click: () => sheet.close() }, "Close");
  const sheet = element(
    "dialog",
    { class: "sheet", "aria-label": "Explanation of a key", close: () => beside.append(answer) },
    element("p", { class: "actions" }, close),
  );
  root.append(
    element(
      "p",
      { class: "soft" },
      kind.intro,
    ),
    note,
    beside,
    sheet,
  );

  let domains = [];
  ask("GET", "/rules").then(
    (rules) => (domains = Object.keys(rules.domains)),
    () => {},
  );

  const choose = (key) => {
    const found = split(key, domains);
    for (const [other, { button }] of rows) button.setAttribute("aria-pressed", other === key);
    hint.remove();
    if (found)
      explain([
        ["domain", found[0]],
        ["key", found[1]],
      ]);
    if (NARROW.matches) {
      sheet.append(answer);
      sheet.showModal();
    }
    answer.focus();
  };

  const row = (key) => {
    const [each, total] = [element("span"), element("span")];
    const cut = key.endsWith("…");
    const label = cut ? "The text of this key was cut, so it cannot be explained" : null;
    const button = whole("button", key, {
      class: "link mono",
      disabled: cut,
      title: label,
      "aria-pressed": "false",
      click: () => choose(key),
    });
    return { root: make(button, [each, total]), button, each, total };
  };

  const update = () => {
    const sample = history.latest;
    if (!sample) return;
    const listed = sample.top[kind.list];
    const held = body.matches(":hover") || body.contains(document.activeElement);
    const now = new Set(listed.map(({ key }) => key));
    for (const [key, { root: old }] of rows) {
      if (!now.has(key) && !held) {
        old.remove();
        rows.delete(key);
      }
    }
    for (const { key, count: most, error } of listed) {
      if (!rows.has(key)) {
        rows.set(key, row(key));
        body.append(rows.get(key).root);
      }
      const shown = rows.get(key);
      say(shown.each, perSecond(history.keyRate(kind.list, key)));
      say(shown.total, error > 0 ? `${number(most - error)} to ${number(most)}` : number(most));
      if (!held) body.append(shown.root);
    }
    const missed =
      kind.list === "denied" && sample.top.missed > 0
        ? `${count(sample.top.missed, "denial")} arrived while the list was read and counted for no key.`
        : "";
    say(note, listed.length === 0 ? kind.empty : missed);
  };
  return { update };
}
