// Try it: asks what a request would be answered.

import { ask } from "./api.js";
import { choice, element, field } from "./dom.js";
import { explainer } from "./explain.js";

export function tryIt(root, { history }) {
  const domains = element("datalist", { id: "domains" });
  const domain = element("input", { list: "domains", required: true, autocomplete: "off", spellcheck: "false" });
  const descriptors = element("textarea", {
    required: true,
    spellcheck: "false",
    placeholder: "remote_address=203.0.113.7",
  });
  const asks = choice("asks", [
    ["hits", "charges"],
    ["refund", "refunds"],
    ["peek", "only looks"],
  ]);
  const hits = element("input", { type: "number", min: 1, step: 1, value: 1 });
  const answer = element("section", { tabindex: -1, "aria-label": "Answer" });
  const explanation = explainer(answer, history, "denied");
  const form = element(
    "form",
    { class: "card" },
    field("Domain", "domain", domain),
    domains,
    field(
      "Descriptors",
      "descriptors",
      descriptors,
      "One a line: key=value,key=value. A backslash escapes the next character.",
    ),
    element(
      "div",
      { class: "row" },
      field("The request", "asks", asks),
      field("Hits of each descriptor", "hits", hits),
    ),
    element("p", {}, element("button", {}, "Explain")),
    element("p", { class: "soft" }, "The request is decided on copies of the counters: nothing is charged."),
  );
  asks.addEventListener("change", () => (hits.disabled = asks.value === "peek"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const lines = descriptors.value.split("\n").filter((line) => line.trim() !== "");
    const peek = asks.value === "peek";
    const amount = peek ? ["hits", "0"] : [asks.value, hits.value || "1"];
    await explanation.explain([["domain", domain.value], ...lines.map((line) => ["key", line]), amount]);
    answer.focus();
  });
  root.append(element("div", { class: "split" }, form, answer));
  ask("GET", "/rules").then(
    (rules) => {
      const names = Object.keys(rules.domains);
      domains.append(...names.map((name) => element("option", { value: name })));
      if (names.length > 0 && domain.value === "") domain.value = names[0];
    },
    () => {},
  );
  return { update: explanation.update };
}
