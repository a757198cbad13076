// The operators' page: reads the stream of samples and shows the chosen view.

import { Refusal, lines, useToken } from "./api.js";
import { cluster } from "./cluster.js";
import { age, element, parts, say } from "./dom.js";
import { strip } from "./findings.js";
import { History } from "./history.js";
import { keys, quotas } from "./keys.js";
import { limits } from "./limits.js";
import { overview } from "./overview.js";
import { rules } from "./rules.js";
import { tryIt } from "./try.js";

const VIEWS = {
  overview: ["Overview", overview],
  rules: ["Rules", rules],
  keys: ["Keys", keys],
  limits: ["Limits", limits],
  quotas: ["Quotas", quotas],
  cluster: ["Cluster", cluster],
  try: ["Try it", tryIt],
};
const RETRY_MS = 2000;
/** The silence after which the server is taken as lost, and that after which another stream is opened. */
const SILENT_MS = 5000;
const DEAD_MS = 20_000;
/** With very many rules samples are rare: a silence lasts this many times the time between two. */
const SILENT_SAMPLES = 3;

const history = new History();
const state = document.getElementById("state");
const clock = document.getElementById("clock");
const identity = document.getElementById("identity");
const health = strip(document.getElementById("health"), history);
const place = document.getElementById("view");
const form = document.getElementById("token-form");
let view = null;
/** What views share. */
const context = {
  history,
  /** The key to explain when its list is shown. */
  chosen: null,
  chooseKey: (list, key) => {
    context.chosen = { list, key };
    location.hash = list === "denied" ? "#keys" : "#quotas";
  },
};
let isOpen = false;
/** When the last line arrived, the time between the last two, and whether the stream is known to have ended. */
let heard = { at: 0, between: 0, isLost: false };
/** Ends the stream that is read, and when that was opened. */
let stream = { controller: new AbortController(), opened: 0 };

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
  view = make(body, context);
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

/** Who answers, beside the name. */
function showIdentity({ process, cluster: members, rules: active, at }) {
  const up = age(Math.max(0, at - Date.parse(process.started_at)) / 1000);
  const texts = [
    process.host && `host ${process.host}`,
    members && `member ${members.self}`,
    `version ${process.version}`,
    `up ${up}`,
    active.hash && `rules ${active.hash}`,
  ];
  const text = texts.filter(Boolean).join(", ");
  if (identity.dataset.text !== text) identity.replaceChildren(...parts(text));
  identity.dataset.text = text;
}

function hear() {
  const now = performance.now();
  heard = { at: now, between: heard.at > 0 && !heard.isLost ? now - heard.at : 0, isLost: false };
}

/** For how long nothing was received, in milliseconds; 0 if that is usual. */
function silence() {
  const silent = performance.now() - heard.at;
  const isSilent = heard.isLost || silent > Math.max(SILENT_MS, heard.between * SILENT_SAMPLES);
  return isSilent ? silent : 0;
}

/** Looks each second whether the server still answers. */
function watch() {
  if (!isOpen) return;
  const silent = silence();
  if (silent > 0) {
    health.update(silent);
    if (state.className !== "bad") tell("No answer", true);
  }
  const waited = performance.now() - Math.max(heard.at, stream.opened);
  if (waited > Math.max(DEAD_MS, heard.between * SILENT_SAMPLES)) stream.controller.abort();
}

async function follow() {
  let entered = false;
  for (;;) {
    let hasLines = false;
    try {
      stream = { controller: new AbortController(), opened: performance.now() };
      for await (const line of lines("/live", stream.controller.signal)) {
        history.add(line);
        // The first line has no sample.
        if (line.points) continue;
        hasLines = true;
        hear();
        tell("Live", false);
        // Apart from the state, which is read aloud when it changes.
        say(clock, new Date(history.latest.at).toLocaleTimeString("en-GB"));
        open();
        showIdentity(history.latest);
        health.update(0);
        view.update();
      }
      // A stream ends after a while, so that the token is checked again.
      if (hasLines) continue;
      heard.isLost = true;
      tell("No samples: trying again", true);
    } catch (error) {
      heard.isLost = true;
      if (error instanceof Refusal && error.status === 401) {
        isOpen = false;
        document.getElementById("health").hidden = true;
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
health.follow(() => isOpen && silence() === 0);
setInterval(watch, 1000);
