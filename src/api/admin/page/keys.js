// Lists of keys: those that are denied most often, and those with quotas; with the explanation of the chosen one.

import { ask } from "./api.js";
import { choice, count, element, number, perSecond, say, table, whole } from "./dom.js";
import { explainer } from "./explain.js";

// As in the style sheet: there is no room beside the list.
const NARROW = matchMedia("(max-width: 60rem)");
/** The number of keys that are listed unless all are asked for. */
const LISTED_MAX = 20;

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
    "The keys that are denied most often on this replica. Choose one to see why it is refused; asking charges nothing. The order stays while the pointer or the focus is in the list.",
  empty: "No key was denied yet.",
};
const QUOTAS = {
  list: "quotas",
  label: "Keys most requested at clients with quotas",
  columns: [["Key"], ["Requested each second", "number"], ["Since the start", "number"]],
  intro:
    "The keys that clients with quotas, as Envoys, report most requests of. Choose one to see how its limit is divided. Reports come every few seconds.",
  empty: "No client has reported requests of a limit that is divided.",
};

export function keys(root, context) {
  return listOf(root, context, DENIED);
}

export function quotas(root, context) {
  return listOf(root, context, QUOTAS);
}

function listOf(root, context, kind) {
  const { history } = context;
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
  const explanation = explainer(answer, history, kind.list);
  const order = choice("order", [
    ["rate", "each second now"],
    ["count", "since the start"],
  ]);
  const more = element("button", { hidden: true, click: () => showAll() });
  let most = LISTED_MAX;
  const beside = element("div", { class: "split" }, element("section", { class: "card" }, list, more), answer);
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
    element("div", { class: "field inline" }, element("label", { for: "order" }, "Order by"), " ", order),
    note,
    beside,
    sheet,
  );

  const domains = ask("GET", "/rules").then(
    (rules) => Object.keys(rules.domains),
    () => [],
  );

  const choose = async (key) => {
    const found = split(key, await domains);
    for (const [other, { button }] of rows) button.setAttribute("aria-pressed", other === key);
    hint.remove();
    if (found)
      explanation.explain([
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

  const showAll = () => {
    most = Infinity;
    update();
    // The button is gone.
    list.focus();
  };

  const update = () => {
    const sample = history.latest;
    if (!sample) return;
    explanation.update();
    const all = sample.top[kind.list];
    const [first, second] = order.value === "rate" ? ["rate", "count"] : ["count", "rate"];
    all.sort((one, other) => other[first] - one[first] || other[second] - one[second]);
    const listed = all.slice(0, most);
    more.hidden = listed.length === all.length;
    say(more, `Show all ${number(all.length)} keys`);
    const held = body.matches(":hover") || body.contains(document.activeElement);
    const now = new Set(listed.map(({ key }) => key));
    for (const [key, { root: old }] of rows) {
      if (!now.has(key) && !held) {
        old.remove();
        rows.delete(key);
      }
    }
    for (const { key, count: times, error, rate } of listed) {
      if (!rows.has(key)) {
        if (held && rows.size >= most) continue;
        rows.set(key, row(key));
        body.append(rows.get(key).root);
      }
      const shown = rows.get(key);
      say(shown.each, perSecond(rate));
      say(shown.total, error > 0 ? `${number(times - error)} to ${number(times)}` : number(times));
      if (!held) body.append(shown.root);
    }
    const missed =
      kind.list === "denied" && sample.top.missed > 0
        ? `${count(sample.top.missed, "denial")} arrived while the list was read and counted for no key.`
        : "";
    say(note, listed.length === 0 ? kind.empty : missed);
  };
  order.addEventListener("change", update);
  if (context.chosen?.list === kind.list) choose(context.chosen.key);
  context.chosen = null;
  return { update };
}
