// Cluster: the members and their slots, as this replica sees them.

import { age, element, hideEmptyColumns, number, perSecond, say, seconds, share, table, terms, whole } from "./dom.js";

const COLOURS = 6;
const COLUMNS = [["Member"], ["State"], ["Slots", "number"], ["Last message", "number"], ["Rules"]];
/** How members that are no longer there have departed. Those of which it is not known have left. */
const DEATHS = { died: "died", silent: "given up as silent" };

/** The members that are part of the cluster, those that have ended without leaving, and those that left in order. */
export function grouped(members) {
  const isDeath = ({ departure }) => departure in DEATHS;
  const here = members.filter(({ state }) => state !== "gone");
  const [serving, others] = [true, false].map((wanted) => here.filter((one) => (one.state === "serving") === wanted));
  const gone = members.filter(({ state }) => state === "gone").sort((one, other) => one.silent_ms - other.silent_ms);
  return { serving, others, dead: gone.filter(isDeath), left: gone.filter((one) => !isDeath(one)) };
}

/** Members that have died, as a text: `1 died 20 s ago`; an empty one if there is none. */
export function deaths({ dead }) {
  if (dead.length === 0) return "";
  return `${number(dead.length)} died${dead.length > 1 ? ", the last one" : ""} ${age(dead[0].silent_ms / 1000)} ago`;
}

function alone(root) {
  const note = element("p", { class: "card" });
  root.append(note);
  const update = (sample) => {
    const shared = sample.store.shared;
    say(
      note,
      shared
        ? `The counters are in a shared store, which is ${shared.state}. Replicas that use it: ${number(shared.replicas)}.`
        : "This is a single replica: cluster.listen is off.",
    );
  };
  return update;
}

function members(root, history) {
  const bar = element("div", { class: "bar", role: "img" });
  const summary = element("div");
  const {
    root: list,
    body,
    row: make,
  } = table("Members", COLUMNS);
  const died = element("p", { class: "bad" });
  const leftSummary = element("summary");
  const leftList = element("ul");
  const left = element("details", { hidden: true }, leftSummary, leftList);
  const checks = element("div");
  root.append(
    element("section", { class: "card" }, element("h3", {}, "Slots by owner"), bar, summary),
    element(
      "section",
      { class: "card" },
      element("h3", {}, "Members"),
      died,
      list,
      left,
    ),
    element("section", { class: "card" }, element("h3", {}, "Checks of this replica in the last 10 seconds"), checks),
  );

  return (sample) => {
    const view = sample.cluster;
    const all = view.members.reduce((sum, member) => sum + member.holding, 0);
    const own = view.members.find((member) => member.id === view.self);
    bar.replaceChildren(
      ...view.members
        .filter((member) => member.holding > 0)
        .map((member) => {
          const part = element("span", { class: `m${view.members.indexOf(member) % COLOURS}` });
          part.style.flexGrow = member.holding;
          return part;
        }),
    );
    const owners = view.members.map((member) => `${member.address} ${share(member.holding, all)}`);
    bar.setAttribute("aria-label", `Slots by owner: ${owners.join(", ")}`);
    summary.replaceChildren(
      terms([
        ["This replica", `${own?.address ?? view.self}, ${view.state}${view.isolated ? ", isolated" : ""}`],
        ["Slots of this replica", number(view.holding)],
        ["Slots that move", number(view.moving)],
        ["Slots it has a backup of", number(view.copies)],
        ["Last backup that arrived", `${seconds(view.backup_age_ms / 1000)} ago`],
        ["View", element("code", {}, view.view)],
      ]),
    );
    const groups = grouped(view.members);
    say(died, deaths(groups));
    died.hidden = groups.dead.length === 0;
    left.hidden = groups.left.length === 0;
    say(leftSummary, `${number(groups.left.length)} left in order`);
    const leftTexts = groups.left.map((one) => `${one.address}, id ${one.id}, ${age(one.silent_ms / 1000)} ago`);
    leftList.replaceChildren(...leftTexts.map((text) => whole("li", text)));
    body.replaceChildren(
      ...[...groups.serving, ...groups.others, ...groups.dead].map((member) => {
        const index = view.members.indexOf(member);
        const isSelf = member.id === view.self;
        const name = element(
          "div",
          {},
          element("span", { class: `swatch m${index % COLOURS}`, "aria-hidden": "true" }),
          whole("span", member.address),
          isSelf ? " (this one)" : "",
          whole("span", `id ${member.id}`, { class: "at" }),
        );
        const hasOwnRules = member.rules === own?.rules;
        const death = DEATHS[member.departure];
        const kind = death ? "bad" : member.state === "serving" ? "good" : "warn";
        const rules = hasOwnRules ? "the same" : `others: ${member.rules}`;
        return make(name, [
          element("span", { class: kind }, death ?? member.state),
          element("span", {}, death ? "–" : `${number(member.holding)} (${share(member.holding, all)})`),
          element("span", {}, isSelf ? "–" : `${seconds(member.silent_ms / 1000)} ago`),
          element("span", { class: hasOwnRules || death ? "" : "warn" }, death ? "–" : rules),
        ]);
      }),
    );
    hideEmptyColumns([list], COLUMNS.length);
    const growth = (figure) => history.growth((one) => figure(one) ?? 0) ?? 0;
    const decisions = growth((one) => one.decisions.ok + one.decisions.over_limit);
    const kinds = [
      ["Sent to their owner", "forwarded"],
      ["Decided from a lease", "leased"],
      ["Decided without their owner (degraded)", "degraded"],
    ];
    checks.replaceChildren(
      terms([
        ["Decisions", perSecond(decisions)],
        ...kinds.map(([name, kind]) => {
          const each = growth((one) => one.cluster?.checks[kind]);
          const text = `${perSecond(each)} (${share(each, decisions)} of decisions); ${number(view.checks[kind])} since the start`;
          return [name, element("span", { class: kind === "degraded" && each > 0 ? "bad" : "" }, text)];
        }),
      ]),
    );
  };
}

export function cluster(root, { history }) {
  let shown = null;
  let show = null;
  const update = () => {
    const sample = history.latest;
    if (!sample) return;
    const kind = sample.cluster ? "members" : "alone";
    if (kind !== shown) {
      root.replaceChildren();
      shown = kind;
      show = sample.cluster ? members(root, history) : alone(root);
    }
    show(sample);
  };
  return { update };
}
