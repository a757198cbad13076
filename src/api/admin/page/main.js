// The operators' page: reads the stream of samples and shows the chosen view.

import { Refusal, lines, useToken } from "./api.js";
import { cluster } from "./cluster.js";
import { element, say } from "./dom.js";
import { History } from "./history.js";
import { keys, quotas } from "./keys.js";
import { overview } from "./overview.js";
import { rules } from "./rules.js";
import { tryIt } from "./try.js";

const VIEWS = {
  overview: ["Overview", overview],
  rules: ["Rules", rules],
  keys: ["Keys", keys],
  quotas: ["Quotas", quotas],
  cluster: ["Cluster", cluster],
  try: ["Try it", tryIt],
};
const RETRY_MS = 2000;

const history = new History();
const state = document.getElementById("state");
const clock = document.getElementById("clock");
const place = document.getElementById("view");
const form = document.getElementById("token-form");
let view = null;
let isOpen = false;

function chosen() {
  const name = location.hash.slice(1);
  return name in VIEWS ? name : null;
}

function show(name) {
  const [title, make] = VIEWS[name];
  const heading = element("h2", { tabindex: -1 }, title);
  const body = element("div");
  place.replaceChildren(heading, body);
  document.title = `${title} – Tollgate`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view = make(body, { history });
  view.update();
  return heading;
}

function tell(text, isBad) {
  say(state, text);
  state.className = isBad ? "bad" : "";
}

/** Waits for a token that the operator enters. */
function askForToken(why) {
  tell("Locked: enter the admin token", true);
  form.hidden = false;
  place.hidden = true;
  const input = document.getElementById("token");
  say(document.getElementById("token-error"), why);
  input.focus();
  return new Promise((resolve) => {
    form.addEventListener(
      "submit",
      (event) => {
        event.preventDefault();
        useToken(input.value.trim());
        input.value = "";
        resolve();
      },
      { once: true },
    );
  });
}

function open() {
  if (isOpen) return;
  isOpen = true;
  form.hidden = true;
  place.hidden = false;
  show(chosen() ?? "overview");
}

async function follow() {
  let entered = false;
  for (;;) {
    let hasLines = false;
    try {
      for await (const line of lines("/live")) {
        history.add(line);
        // The first line has no sample.
        if (line.points) continue;
        hasLines = true;
        tell("Live", false);
        // Apart from the state, which is read aloud when it changes.
        say(clock, new Date(history.latest.at).toLocaleTimeString("en-GB"));
        open();
        view.update();
      }
      // A stream ends after a while, so that the token is checked again.
      if (hasLines) continue;
      tell("No samples: trying again", true);
    } catch (error) {
      if (error instanceof Refusal && error.status === 401) {
        isOpen = false;
        await askForToken(entered ? "This is not the token that the service has." : "");
        entered = true;
        continue;
      }
      tell(error instanceof Refusal ? error.message : "No answer: trying again", true);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

addEventListener("hashchange", () => {
  const name = chosen();
  if (isOpen && name) show(name).focus();
});
follow();
