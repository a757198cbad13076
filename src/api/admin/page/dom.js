// Builds elements and formats values. Texts become text nodes only, so that no value is read as markup.

const SVG = "http://www.w3.org/2000/svg";
/** Between a number and what belongs to it: no line breaks there. */
export const NO_BREAK = "\u00a0";

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

/**
 * Nodes for a text with keys, paths or numbers. Lines break between words, and after a comma or a slash; within other
 * parts only if one is longer than a line.
 */
export function parts(text) {
  const words = text.split(/([ \n]+)/);
  return words.flatMap((word, index) =>
    index % 2 === 1 ? [word] : (word.match(/[^,/]*[,/]+|[^,/]+/g) ?? []).map((part) => element("span", {}, part)),
  );
}

/** An element with a text whose parts stay whole. */
export function whole(tag, text, attributes = {}) {
  return element(tag, { ...attributes, class: `whole ${attributes.class ?? ""}`.trim() }, parts(text));
}

/** A list of terms and texts or nodes; pairs without a value are left out. */
export function terms(pairs) {
  const given = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element(
    "dl",
    {},
    given.flatMap(([term, value]) => [
      element("dt", {}, term),
      typeof value === "string" ? whole("dd", value) : element("dd", {}, value),
    ]),
  );
}

/**
 * A table. On a narrow screen each row is a block, whose cells have the names of their columns as labels. The roles are
 * explicit, because blocks lose those of the elements.
 *
 * `columns`: the name of each, and `number` if its cells are numbers. The first one names the row.
 */
export function table(label, columns) {
  const body = element("tbody", { role: "rowgroup" });
  const head = columns.map(([name, kind]) => element("th", { scope: "col", role: "columnheader", class: kind }, name));
  const root = element(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": label },
    element(
      "table",
      { role: "table" },
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, head)),
      body,
    ),
  );
  /** A row: the head and the cells, each of which is one node. */
  const row = (headNode, cells) =>
    element(
      "tr",
      { role: "row" },
      element("th", { scope: "row", role: "rowheader" }, headNode),
      cells.map((cell, index) => {
        const [name, kind] = columns[index + 1];
        return element("td", { role: "cell", class: kind, "data-label": name }, cell);
      }),
    );
  return { root, body, row };
}

/** An input below its label, and below it what helps. */
export function field(label, id, input, help) {
  input.id = id;
  if (help) input.setAttribute("aria-describedby", `${id}-help`);
  const note = help ? element("p", { class: "soft", id: `${id}-help` }, help) : null;
  return element("div", { class: "field" }, element("label", { for: id }, label), input, note);
}

/** A list from which one of `options` is chosen: pairs of a value and its text. */
export function choice(id, options) {
  return element(
    "select",
    { id },
    options.map(([value, text]) => element("option", { value }, text)),
  );
}

/** Hides the columns of tables that are empty in all of their rows; the first ones are heads. */
export function hideEmptyColumns(tables, columns) {
  for (let index = 1; index < columns; index += 1) {
    const cells = tables.flatMap((one) => [...one.querySelectorAll(`tbody td:nth-child(${index + 1})`)]);
    const isEmpty = cells.length > 0 && cells.every((cell) => ["", "–"].includes(cell.textContent));
    for (const one of tables) {
      for (const cell of one.querySelectorAll(`tr > :nth-child(${index + 1})`)) cell.hidden = isEmpty;
    }
  }
}

/** Sets a text only if it changes, so that a selection in it stays. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const integer = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export function number(value) {
  return integer.format(value);
}

/** A rate: tenths below 100. */
export function rate(value) {
  return value > 0 && value < 100 ? tenth.format(value) : integer.format(value);
}

/** A share of a whole; a dash if there is none. */
export function share(part, all) {
  return all > 0 ? `${tenth.format((100 * part) / all)}${NO_BREAK}%` : "–";
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) [value, unit] = [value / 1024, unit + 1];
  return `${unit === 0 ? integer.format(value) : tenth.format(value)}${NO_BREAK}${units[unit]}`;
}

/** A number with its noun: `1 rule`, `2 rules`. */
export function count(value, noun) {
  return `${integer.format(value)}${NO_BREAK}${noun}${value === 1 ? "" : "s"}`;
}

/** An instant in RFC 3339, to the second. */
export function instant(text) {
  return text.replace("T", NO_BREAK).replace(/(\.\d+)?Z$/, `${NO_BREAK}UTC`);
}

/** A rate with its unit. */
export function perSecond(value) {
  return `${rate(value)}${NO_BREAK}/s`;
}

export function seconds(value) {
  const [figure, unit] = inUnit(value);
  return `${figure}${NO_BREAK}${unit}`;
}

/** A time in whole seconds or longer units. */
export function age(value) {
  return value < 120 ? `${integer.format(Math.floor(value))}${NO_BREAK}s` : seconds(value);
}

function inUnit(value) {
  if (value < 0.001) return [integer.format(value * 1e6), "µs"];
  if (value < 1) return [rate(value * 1e3), "ms"];
  if (value < 120) return [rate(value), "s"];
  if (value < 7200) return [integer.format(value / 60), "min"];
  return value < 172800 ? [integer.format(value / 3600), "h"] : [integer.format(value / 86400), "days"];
}
