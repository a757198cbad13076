// Keys: those that were denied most often, and why.

import { ask } from "./api.js";
import { count, element, number, rate, say } from "./dom.js";
import { explainer } from "./explain.js";

/** Domain and descriptor of a key; null if its text was cut. */
function parts(key, domains) {
  if (key.endsWith("…")) return null;
  const fitting = domains.filter((domain) => key.startsWith(`${domain} `));
  const longest = fitting.reduce((one, other) => (other.length > one.length ? other : one), "");
  const domain = longest || key.slice(0, Math.max(0, key.indexOf(" ")));
  return [domain, key.slice(domain.length + 1)];
}

export function keys(root, { history }) {
  const rows = new Map();
  const body = element("tbody");
  const note = element("p", { class: "soft" });
  const table = element(
    "table",
    {},
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        element("th", { scope: "col" }, "Key"),
        element("th", { scope: "col", class: "number" }, "Denied each second"),
        element("th", { scope: "col", class: "number" }, "Since the start"),
      ),
    ),
    body,
  );
  const answer = element(
    "section",
    { class: "card", tabindex: -1, "aria-label": "Explanation" },
    element("h3", {}, "Explanation"),
  );
  const explain = explainer(answer);
  const hint = element("p", { class: "soft" }, "Choose a key to see why it is refused. Asking charges nothing.");
  answer.append(hint);
  root.append(
    element(
      "p",
      { class: "soft" },
      "The keys that were denied most often since the start, on this replica. The order stays while the pointer or the focus is in the list.",
    ),
    note,
    element(
      "div",
      { class: "split" },
      element("section", { class: "card scroll", tabindex: 0, "aria-label": "Most denied keys" }, table),
      answer,
    ),
  );

  let domains = [];
  ask("GET", "/rules").then(
    (rules) => (domains = Object.keys(rules.domains)),
    () => {},
  );

  const choose = (key) => {
    const found = parts(key, domains);
    for (const [other, { button }] of rows) button.setAttribute("aria-pressed", other === key);
    hint.remove();
    if (found)
      explain([
        ["domain", found[0]],
        ["key", found[1]],
      ]);
    answer.focus();
  };

  const row = (key) => {
    const [each, total] = [element("td", { class: "number" }), element("td", { class: "number" })];
    const cut = key.endsWith("…");
    const label = cut ? "The text of this key was cut, so it cannot be explained" : null;
    const button = element(
      "button",
      { class: "link mono", disabled: cut, title: label, "aria-pressed": "false", click: () => choose(key) },
      key,
    );
    return { root: element("tr", {}, element("th", { scope: "row" }, button), each, total), button, each, total };
  };

  const update = () => {
    const sample = history.latest;
    if (!sample) return;
    const denied = sample.top.denied;
    const held = body.matches(":hover") || body.contains(document.activeElement);
    const now = new Set(denied.map(({ key }) => key));
    for (const [key, { root: old }] of rows) {
      if (!now.has(key) && !held) {
        old.remove();
        rows.delete(key);
      }
    }
    for (const { key, count: most, error } of denied) {
      if (!rows.has(key)) {
        rows.set(key, row(key));
        body.append(rows.get(key).root);
      }
      const shown = rows.get(key);
      say(shown.each, `${rate(history.keyRate(key))} /s`);
      say(shown.total, error > 0 ? `${number(most - error)} to ${number(most)}` : number(most));
      if (!held) body.append(shown.root);
    }
    const missed =
      sample.top.missed > 0
        ? `${count(sample.top.missed, "denial")} arrived while the list was read and counted for no key.`
        : "";
    say(note, denied.length === 0 ? "No key was denied yet." : missed);
  };
  return { update };
}
