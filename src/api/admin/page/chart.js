// A line chart of the last five minutes, or of the time that there is.

import { NO_BREAK, element, say, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [600, 160];
/** The times that the axis may have, in seconds, each with the number of its parts. */
const SPANS = [
  [5, 5],
  [10, 5],
  [30, 3],
  [60, 4],
  [90, 3],
  [120, 4],
  [180, 3],
  [240, 4],
  [300, 5],
];
const TOPS = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];
// A longer time between points is a gap.
const GAP_MS = 30 * 1000;

/** The smallest round number that is not below `value`. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return TOPS.map((factor) => factor * power).find((round) => round >= value * 0.999999);
}

function line(points, figure, at, top, span) {
  let path = "";
  let last = null;
  for (const point of points) {
    const value = figure(point);
    if (value === null) {
      last = null;
      continue;
    }
    const x = WIDTH * (1 - (at - point.at) / span);
    const y = HEIGHT * (1 - Math.min(value / top, 1));
    path += `${last !== null && point.at - last < GAP_MS ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    last = point.at;
  }
  return path;
}

/**
 * `series`: name and figure of each line; `format`: a figure as text; `mark`: the top of the scale as text; `least`: its
 * least value.
 */
export function chart(title, series, { format, mark, least }) {
  const top = element("p", { class: "axis" });
  const paths = series.map((_, index) => svg("path", { class: `s${index}` }));
  const level = (part) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part });
  const instants = svg("g");
  const times = element("div", { class: "axis times" });
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
    [0, 0.25, 0.5, 0.75, 1].map(level),
    instants,
    paths,
  );
  let drawn = 0;
  /** Draws the axis of a time: its lines and their labels. */
  const showTimes = ([span, parts]) => {
    if (span === drawn) return;
    drawn = span;
    const marks = Array.from({ length: parts + 1 }, (_, index) => index);
    const unit = span > 60 ? "min" : "s";
    const label = (mark) => {
      if (mark === parts) return "now";
      const ago = (span * (parts - mark)) / parts / (unit === "s" ? 1 : 60);
      return mark === 0 ? `−${ago}${NO_BREAK}${unit}` : `−${ago}`;
    };
    times.style.gridTemplateColumns = `1fr repeat(${parts - 1}, 2fr) 1fr`;
    times.replaceChildren(...marks.map((mark) => element("span", {}, label(mark))));
    const x = (mark) => (WIDTH * mark) / parts;
    instants.replaceChildren(
      ...marks.map((mark) => svg("line", { class: "grid", x1: x(mark), x2: x(mark), y1: 0, y2: HEIGHT })),
    );
  };
  const values = series.map(() => element("span"));
  const legend = series.map(([name], index) => {
    const sample = svg("svg", { viewBox: "0 0 26 4", "aria-hidden": "true" });
    sample.append(svg("path", { class: `s${index}`, d: "M0 2H26" }));
    return element("li", {}, sample, `${name}: `, values[index]);
  });
  const root = element(
    "section",
    { class: "card chart wide" },
    element("h3", {}, title),
    top,
    drawing,
    times,
    element("ul", { class: "legend" }, legend),
  );
  const update = (points, at) => {
    const age = points.length > 0 ? (at - points[0].at) / 1000 : 0;
    const fitting = SPANS.find(([span]) => span >= age) ?? SPANS.at(-1);
    const span = fitting[0] * 1000;
    showTimes(fitting);
    const shown = points.filter((point) => at - point.at <= span);
    const all = shown.flatMap((point) => series.map(([, figure]) => figure(point)));
    const scale = ceiling(Math.max(least, ...all.filter((value) => value !== null && Number.isFinite(value))));
    series.forEach(([, figure], index) => {
      paths[index].setAttribute("d", line(shown, figure, at, scale, span));
      const value = shown.length > 0 ? figure(shown.at(-1)) : null;
      say(values[index], value === null ? "–" : format(value));
    });
    say(top, mark(scale));
    const now = series.map(([name], index) => `${name} ${values[index].textContent}`);
    drawing.setAttribute("aria-label", `${title}, now: ${now.join(", ")}`);
  };
  return { root, update };
}
