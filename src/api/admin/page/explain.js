// The explanation of a request: what would be decided and why, with the reset of a counter.

import { Refusal, ask } from "./api.js";
import { count, element, instant, number, perSecond, rate, say, seconds, share, table, terms, whole } from "./dom.js";

function verdictText(verdict) {
  if (verdict.passes)
    return verdict.delay_ms ? `passes in ${seconds(verdict.delay_ms / 1000)}, at its turn` : "passes now";
  if (verdict.never) return "refused; it never would pass";
  return `refused; would pass in ${seconds(verdict.retry_after_ms / 1000)}, at ${instant(verdict.passes_at)}`;
}

function counterText({ counter, remaining }) {
  const before = counter.before.kept ? "left before" : "left of an unused counter";
  return `${number(counter.before.remaining)} of ${number(counter.allowance)} ${before}, ${number(remaining)} after`;
}

function heldText({ counter }) {
  const { held } = counter.before;
  if (!held) return null;
  const each = held.first.map(({ id, hits, expires_after_ms: left }) => `${id} (${number(hits)}, ${seconds(left / 1000)} left)`);
  const more = held.reservations > each.length ? ["…"] : [];
  return `${number(held.hits)} by ${number(held.reservations)} reservations: ${[...each, ...more].join(", ")}`;
}

function penaltyText({ counter }) {
  const { penalty } = counter.before;
  if (!penalty) return null;
  const { ends_after_ms: left, penalties, refusals, forgotten_after_ms: remembered } = penalty;
  const lasts = left === null ? "none lasts" : `lasts another ${seconds(left / 1000)}`;
  return `${lasts}; ${number(penalties)} so far, ${number(refusals)} refusals in a row, forgotten in ${seconds(remembered / 1000)}`;
}

function ownLimitText({ counter }) {
  const { own_limit: own } = counter.before;
  if (!own) return null;
  const numbers = Object.entries(own.numbers).map(([name, value]) => (value === true ? name : `${name} ${number(value)}`));
  const end = own.expires_after_ms === null ? [] : [`ends in ${seconds(own.expires_after_ms / 1000)}`];
  return [...numbers, ...(own.note ? [own.note] : []), ...(own.set_by ? [`set by ${own.set_by}`] : []), ...end].join(", ");
}

function ruleText(rule) {
  const modes = [
    ["shadow_mode", "shadow mode"],
    ["quota_mode", "quota mode"],
  ].filter(([mode]) => rule[mode]);
  const label = rule.name ? `${rule.name} (${rule.path})` : rule.path;
  return [`${label} at ${rule.at}`, ...modes.map(([, text]) => text)].join(", ");
}

function level({ looked_up: text, matched, others, there }) {
  const counted = matched?.counted_as ? `, counted as ${matched.counted_as}` : "";
  const found = matched ? `matches ${matched.descriptor} ${matched.how}${counted} (${matched.at})` : "nothing matches";
  const more = [
    ...others.map((other) => `not ${other.descriptor} (${other.at}): ${other.why}`),
    ...(there ?? []).map((other) => `there is ${other.descriptor} (${other.at})`),
  ];
  const list =
    more.length > 0
      ? element(
          "ul",
          {},
          more.map((line) => element("li", {}, line)),
        )
      : null;
  return element("li", {}, whole("code", text), `: ${found}`, list);
}

function limitTerms(part, prefix) {
  if (!part?.limit) return [];
  return [
    [`${prefix}imit`, part.limit],
    [prefix === "L" ? "Decision" : "Candidate’s decision", verdictText(part.verdict)],
    [prefix === "L" ? "Counter" : "Candidate’s counter", counterText(part)],
    [prefix === "L" ? "Held" : "Held by the candidate", heldText(part)],
    ...(prefix === "L" ? [["Its own limit", ownLimitText(part)]] : []),
    [prefix === "L" ? "Penalty" : "Candidate’s penalty", penaltyText(part)],
  ];
}

/** The shares of a limit by client, beside callers that ask for each request. */
function shares({ shares: divided }) {
  if (!divided) return [];
  const { clients, callers_per_second: callers, first } = divided;
  const demands = first.reduce((sum, one) => sum + one.demand_per_second, callers);
  const columns = [["Client"], ["Demand", "number"], ["Of all", "number"], ["Its part", "number"], ["Ends in", "number"]];
  const { root, body, row } = table("Shares of the limit", columns);
  const partText = ({ share: rate, slice }) =>
    slice ? `${number(slice.left)} left of ${number(slice.hits)}` : perSecond(rate.per_second);
  const cell = (text, kind = "") => element("span", { class: kind }, text);
  for (const one of first) {
    const ends = `${seconds(one.ends_after_ms / 1000)}${one.has_ended ? ", gone" : ""}`;
    body.append(
      row(whole("span", one.client), [
        cell(perSecond(one.demand_per_second)),
        cell(share(one.demand_per_second, demands)),
        cell(partText(one)),
        cell(ends, one.has_ended ? "warn" : ""),
      ]),
    );
  }
  if (callers > 0)
    body.append(
      row(whole("span", "callers that ask for each request"), [
        cell(perSecond(callers)),
        cell(share(callers, demands)),
        cell("–"),
        cell("–"),
      ]),
    );
  const more = clients > first.length ? `, of which the first ${number(first.length)} are listed` : "";
  return [element("h4", {}, `Divided over ${count(clients, "client")}${more}`), root];
}

/** What happens, as a text and its colour. A request that nothing limits is perhaps not meant to be. */
function outcome(passes, isLimited, texts) {
  if (!passes) return [texts.refused, "bad"];
  return isLimited ? [texts.passes, "good"] : [texts.unlimited, "warn"];
}

function descriptor(answer, part, reset) {
  const texts = { passes: "passes", refused: "over limit", unlimited: "no limit" };
  const [verdict, colour] = outcome(part.code === "OK", part.limit, texts);
  const can = part.counter && part.rule;
  return element(
    "section",
    { class: "card" },
    element("h3", {}, whole("code", part.descriptor)),
    element(
      "p",
      {},
      element("span", { class: `badge ${colour}` }, verdict),
      whole("span", part.why.replace(/^no limit: /, "")),
    ),
    terms([
      ["Asks", part.asks],
      ["Rule", part.rule && ruleText(part.rule)],
      ["Overlay", part.rule?.overlay],
      ...limitTerms(part, "L"),
      ...limitTerms(part.candidate, "Candidate’s l"),
      ["Counter key", part.counter && whole("code", part.counter.key)],
      ["Kind", part.counter?.kind],
    ]),
    ...shares(part),
    part.levels?.length > 0
      ? element(
          "details",
          {},
          element("summary", {}, "How the rule was found"),
          element("ol", {}, part.levels.map(level)),
        )
      : null,
    can
      ? element(
          "p",
          {},
          element("button", { class: "danger", click: () => reset(answer.domain, part) }, "Reset this counter…"),
        )
      : null,
  );
}

/** The body of a refusal, if it has one. */
function denialBody(body) {
  if (!body) return [];
  const summary = element("summary", {}, `The body of the answer, ${body.content_type}`);
  return [element("details", {}, summary, element("pre", { tabindex: 0 }, body.text))];
}

/** Asks for a confirmation. */
function confirmed(text) {
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-text").textContent = text;
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "confirm"), { once: true });
  });
}

/**
 * Shows explanations in `root`, and what is known of their keys in a list of the samples. Only the answer to the latest
 * question is shown.
 */
export function explainer(root, history, list) {
  const [status, body] = [element("p", { role: "status" }), element("div")];
  const now = element("p", { class: "figure", hidden: true });
  root.append(status, now, body);
  let asked = 0;
  let explained = null;

  const update = () => {
    const keys = (explained?.descriptors ?? []).map((part) => `${explained.domain} ${part.descriptor}`);
    const known = keys.map((key) => history.key(list, key)).filter(Boolean);
    const each = known.reduce((sum, one) => sum + one.rate, 0);
    const done = list === "denied" ? "Refused" : "Requested";
    now.hidden = known.length === 0;
    now.className = `figure ${list === "denied" && each > 0 ? "bad" : ""}`;
    say(now, `${done} ${rate(each)} a second`);
  };

  const reset = async (domain, part, again) => {
    const left = number(part.counter.before.remaining);
    const text = `${domain} ${part.descriptor}: ${left} of ${number(part.counter.allowance)} are left. A reset gives back everything that was counted, for all callers.`;
    if (!(await confirmed(text))) return;
    try {
      const after = await ask("DELETE", "/counters", [
        ["domain", domain],
        ["key", part.descriptor],
      ]);
      await again();
      status.textContent = `The counter was reset: ${number(after.before.remaining)} were left, ${number(after.remaining)} are now.`;
      root.focus();
    } catch (error) {
      status.textContent = `The counter was not reset: ${error.message}`;
    }
  };

  const explain = async (parameters) => {
    asked += 1;
    const turn = asked;
    status.textContent = "Asking";
    try {
      const answer = await ask("GET", "/explain", parameters);
      if (turn !== asked) return;
      const texts = { passes: "Passes", refused: "Over limit", unlimited: "No limit" };
      const isLimited = answer.descriptors.some((part) => part.limit);
      const [verdict, colour] = outcome(answer.code === "OK", isLimited, texts);
      const by = answer.refused_by.length > 0 ? `, refused by ${answer.refused_by.join(", ")}` : "";
      const shadow = answer.passes_in_shadow_mode ? "; it passes only because of limiter.shadow_mode" : "";
      status.textContent = "";
      explained = answer;
      update();
      body.replaceChildren(
        element("p", { class: "soft" }, "At this moment:"),
        element("p", { class: `figure ${colour}` }, verdict),
        whole("p", `Decided at ${instant(answer.at)}${by}${shadow}. Nothing was charged.`),
        ...denialBody(answer.denial_body),
        ...answer.descriptors.map((part) =>
          descriptor(answer, part, (domain, one) => reset(domain, one, () => explain(parameters))),
        ),
        element(
          "details",
          {},
          element("summary", {}, "The answer as JSON"),
          element("pre", { tabindex: 0 }, JSON.stringify(answer, null, 2)),
        ),
      );
    } catch (error) {
      if (turn !== asked) return;
      explained = null;
      update();
      body.replaceChildren();
      status.textContent = error instanceof Refusal ? error.message : `No answer: ${error.message}`;
    }
  };
  return { explain, update };
}
