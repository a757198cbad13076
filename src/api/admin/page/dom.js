// Builds elements and formats values. Texts become text nodes only, so that no value is read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A list of terms and texts or nodes; pairs without a value are left out. */
export function terms(pairs) {
  const given = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element(
    "dl",
    {},
    given.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]),
  );
}

/** Sets a text only if it changes, so that a selection in it stays. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export function number(value) {
  return whole.format(value);
}

/** A rate: tenths below 100. */
export function rate(value) {
  return value > 0 && value < 100 ? tenth.format(value) : whole.format(value);
}

/** A share of a whole; a dash if there is none. */
export function share(part, all) {
  return all > 0 ? `${tenth.format((100 * part) / all)} %` : "–";
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) [value, unit] = [value / 1024, unit + 1];
  return `${unit === 0 ? whole.format(value) : tenth.format(value)} ${units[unit]}`;
}

/** A number with its noun: `1 rule`, `2 rules`. */
export function count(value, noun) {
  return `${whole.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** An instant in RFC 3339, to the second. */
export function instant(text) {
  return text.replace("T", " ").replace(/(\.\d+)?Z$/, " UTC");
}

export function seconds(value) {
  if (value < 0.001) return `${whole.format(value * 1e6)} µs`;
  if (value < 1) return `${rate(value * 1e3)} ms`;
  if (value < 120) return `${rate(value)} s`;
  if (value < 7200) return `${whole.format(value / 60)} min`;
  return value < 172800 ? `${whole.format(value / 3600)} h` : `${whole.format(value / 86400)} days`;
}
