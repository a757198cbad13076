// A line chart of the last five minutes.

import { NO_BREAK, element, say, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [600, 160];
const MINUTES = 5;
const SPAN_MS = MINUTES * 60 * 1000;
// A longer time between points is a gap.
const GAP_MS = 30 * 1000;

/** The smallest of 1, 2, 5, 10, 20 ... that is not below `value`. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= value * 0.999999);
}

function line(points, figure, at, top) {
  let path = "";
  let last = null;
  for (const point of points) {
    const value = figure(point);
    if (value === null) {
      last = null;
      continue;
    }
    const x = WIDTH * (1 - (at - point.at) / SPAN_MS);
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
  const minutes = Array.from({ length: MINUTES + 1 }, (_, index) => index);
  const instant = (minute) => {
    const x = (WIDTH * minute) / MINUTES;
    return svg("line", { class: "grid", x1: x, x2: x, y1: 0, y2: HEIGHT });
  };
  const grid = [...[0, 0.25, 0.5, 0.75, 1].map(level), ...minutes.map(instant)];
  const time = (minute) => (minute === MINUTES ? "now" : `−${MINUTES - minute}`);
  const times = minutes.map((minute) => element("span", {}, minute === 0 ? `${time(0)}${NO_BREAK}min` : time(minute)));
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
    grid,
    paths,
  );
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
    element("div", { class: "axis times" }, times),
    element("ul", { class: "legend" }, legend),
  );
  const update = (points, at) => {
    const shown = points.filter((point) => at - point.at <= SPAN_MS);
    const all = shown.flatMap((point) => series.map(([, figure]) => figure(point)));
    const scale = ceiling(Math.max(least, ...all.filter((value) => value !== null && Number.isFinite(value))));
    series.forEach(([, figure], index) => {
      paths[index].setAttribute("d", line(shown, figure, at, scale));
      const value = shown.length > 0 ? figure(shown.at(-1)) : null;
      say(values[index], value === null ? "–" : format(value));
    });
    say(top, mark(scale));
    const now = series.map(([name], index) => `${name} ${values[index].textContent}`);
    drawing.setAttribute("aria-label", `${title}, now: ${now.join(", ")}`);
  };
  return { root, update };
}
