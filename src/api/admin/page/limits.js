// Limits of their own of keys: listed, searched, set and removed. The calls need the admin token.

import { ask, call, hasToken } from "./api.js";
import { NO_BREAK, age, element, field, hideEmptyColumns, instant, say, table, whole } from "./dom.js";

const COLUMNS = [["Key"], ["Limit"], ["Set"], ["Ends in", "number"], ["Actions"]];
const PAGE_SIZE = 20;
/** The numbers of a limit: their fields in JSON, and their names. */
const NUMBERS = [
  ["requestsPerUnit", "requests_per_unit"],
  ["burst", "burst"],
  ["refillAmount", "refill_amount"],
  ["maxInFlight", "max_in_flight"],
  ["overdraftLimit", "overdraft_limit"],
];
const NAME = "the operators\u2019 page";

/** The parts of a text between separators without a backslash before them. */
function split(text, separator, most = Infinity) {
  const parts = [""];
  for (const [piece] of text.matchAll(/\\[^]|[^]/g)) {
    if (piece === separator && parts.length < most) parts.push("");
    else parts[parts.length - 1] += piece;
  }
  return parts;
}

/** The entries of `key=value,key=value`. In them only a backslash stays escaped. */
function entries(text) {
  const plain = (part) => part.replace(/\\([,=])/g, "$1");
  return split(text, ",").map((entry) => {
    const [key, value] = split(entry, "=", 2);
    if (value === undefined) throw new Error(`\u201c${entry}\u201d has no \u201c=\u201d`);
    return { key: plain(key.trim()), value: plain(value) };
  });
}

/** A descriptor as other views write it. */
function text({ entries: list }) {
  const escaped = (part) => part.replace(/[,=]/g, "\\$&");
  return list.map(({ key, value }) => `${escaped(key)}=${escaped(value ?? "")}`).join(",");
}

function numbersOf(limit) {
  if (limit.unlimited) return "unlimited";
  const named = NUMBERS.filter(([name]) => limit[name] !== undefined).map(([name, title]) => `${title} ${limit[name]}`);
  const unit = limit.unit && limit.unit !== "UNKNOWN" ? [`unit ${limit.unit.toLowerCase()}`] : [];
  return [...named, ...unit].join(", ");
}

export function limits(root) {
  if (hasToken()) return forms(root);
  const note = "A key may have a limit of its own. Reading and setting it needs a token, and this service has none (admin.token_file).";
  root.append(element("p", { class: "card" }, note));
  return { update: () => {} };
}

function forms(root) {
  const domains = element("datalist", { id: "limit-domains" });
  const input = (attributes = {}) => element("input", { autocomplete: "off", spellcheck: "false", ...attributes });
  const domain = input({ list: "limit-domains" });
  const prefix = input({ type: "search" });
  const status = element("p", { role: "status" });
  const { root: scroll, body, row } = table("Limits of their own", COLUMNS);
  const more = element("button", { type: "button", hidden: true, click: () => list(false) }, "More");
  const search = element(
    "form",
    { class: "card" },
    element(
      "div",
      { class: "row" },
      field("Domain", "limit-domain", domain),
      field("First entries", "limit-prefix", prefix),
      element("div", { class: "field" }, element("button", {}, "List")),
    ),
    scroll,
    more,
  );
  const key = input({ required: true, placeholder: "user=241531" });
  const integer = () => element("input", { type: "number", min: 0, step: 1 });
  const [requests, burst, seconds] = [integer(), integer(), element("input", { type: "number", min: 1, step: 1 })];
  const unlimited = element("input", { type: "checkbox" });
  const note = input();
  const form = element(
    "form",
    { class: "card" },
    element("h3", {}, "Set a limit"),
    field("Key", "limit-key", key, "In the domain above: key=value,key=value. A backslash escapes the next character."),
    element(
      "div",
      { class: "row" },
      field("Requests per unit", "limit-requests", requests),
      field("Burst", "limit-burst", burst),
      field("Unlimited", "limit-unlimited", unlimited),
      field("Ends in seconds", "limit-seconds", seconds),
    ),
    field("Note", "limit-note", note),
    element("p", {}, element("button", {}, "Set")),
  );
  root.append(
    element(
      "p",
      { class: "soft" },
      "Keys of rules with own may have other numbers. The list has those of the counters that this replica owns.",
    ),
    domains,
    status,
    search,
    form,
  );
  let next = "";

  const line = (limit) => {
    const name = text(limit.key);
    const fill = () => {
      [domain.value, key.value, note.value] = [limit.domain, name, limit.note ?? ""];
      [requests.value, burst.value] = [limit.requestsPerUnit ?? "", limit.burst ?? ""];
      unlimited.checked = limit.unlimited === true;
      key.focus();
    };
    const set = [limit.setAt && instant(limit.setAt).replaceAll(NO_BREAK, " "), limit.setBy && `by ${limit.setBy}`, limit.note].filter(Boolean);
    const button = (label, click, kind) =>
      element("button", { type: "button", class: kind, click, "aria-label": `${label} ${name}` }, label);
    return row(whole("code", `${limit.domain} ${name}`), [
      whole("span", numbersOf(limit)),
      whole("span", set.join(", ")),
      element("span", {}, limit.expiresAfter ? age(parseFloat(limit.expiresAfter)) : "–"),
      element("span", {}, button("Change", fill), " ", button("Clear", () => clear(limit), "danger")),
    ]);
  };

  /** Does something that changes the list or reads it; an error is shown. */
  const attempt = async (what) => {
    try {
      say(status, await what());
    } catch (error) {
      say(status, error.message);
    }
  };

  const read = async (isNew) => {
    const asked = { domain: domain.value, prefix: prefix.value ? entries(prefix.value) : [], pageSize: PAGE_SIZE };
    const answer = await call("/v1/limits/list", { ...asked, pageToken: isNew ? "" : next });
    if (isNew) body.replaceChildren();
    body.append(...(answer.limits ?? []).map(line));
    hideEmptyColumns([scroll], COLUMNS.length);
    next = answer.nextPageToken ?? "";
    more.hidden = next === "";
    return body.children.length === 0 ? "No key has a limit of its own here." : "";
  };
  const list = (isNew) => attempt(() => read(isNew));

  /** The only result of a call; its error is thrown. */
  const single = ({ results: [result] }) => {
    if (result.error) throw new Error(result.error.message);
    return result;
  };

  const clear = (limit) =>
    attempt(async () => {
      single(await call("/v1/limits/clear", { domain: limit.domain, descriptors: [{ entries: limit.key.entries }] }));
      await read(true);
      root.querySelector("#limit-domain").focus();
      return `${text(limit.key)} has the numbers of its rule again.`;
    });

  search.addEventListener("submit", (event) => {
    event.preventDefault();
    list(true);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(async () => {
      const limit = { domain: domain.value, key: { entries: entries(key.value) }, note: note.value, setBy: NAME };
      if (requests.value !== "") limit.requestsPerUnit = requests.value;
      if (burst.value !== "") limit.burst = burst.value;
      if (unlimited.checked) limit.unlimited = true;
      if (seconds.value !== "") limit.expiresAfter = `${seconds.value}s`;
      const { limit: now, rule } = single(await call("/v1/limits/set", { limits: [{ limit }] }));
      await read(true);
      return `${text(now.key)} of ${rule} now has ${numbersOf(now)}.`;
    });
  });
  ask("GET", "/rules").then(
    (rules) => {
      const names = Object.keys(rules.domains);
      domains.append(...names.map((name) => element("option", { value: name })));
      if (names.length > 0 && domain.value === "") domain.value = names[0];
      list(true);
    },
    () => {},
  );
  return { update: () => {} };
}
