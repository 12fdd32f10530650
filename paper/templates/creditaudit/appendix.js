"use strict";
// The page is complete without this. It adds: tables copied as CSV, the register's rows chosen and sorted.
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const words = (cell) => {
  const copy = cell.cloneNode(true);
  for (const formula of copy.querySelectorAll("svg")) formula.replaceWith(formula.getAttribute("aria-label") || "");
  for (const aside of copy.querySelectorAll("summary, .section")) aside.remove();
  return copy.textContent.trim().replace(/[\s\u2060]+/g, " ");
};

const csv = (table) =>
  [...table.rows]
    .filter((row) => !row.hidden)
    .map((row) => [...row.cells].map((cell) => `"${words(cell).replaceAll('"', '""')}"`).join(","))
    .join("\n");

const copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
};

for (const figure of document.querySelectorAll("figure.table")) {
  const button = make("button", { type: "button", className: "copy", textContent: "copy as CSV" });
  button.addEventListener("click", async () => {
    await copy(csv(figure.querySelector("table")));
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy as CSV"), 1500);
  });
  figure.querySelector("figcaption").append(" ", button);
}

// A number where the cell begins with one (9.1e-10, −0.048, ~ 200, ×3), else the words.
const key = (cell) => {
  const text = words(cell).replaceAll("\u2212", "-");
  const number = parseFloat(text.replace(/^[\[~≥≤±×+\s]+/, ""));
  return Number.isNaN(number) ? text.toLowerCase() : number;
};
const order = (a, b) =>
  typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;

for (const figure of document.querySelectorAll("figure.register")) {
  const [body] = figure.querySelector("table").tBodies;
  const rows = [...body.rows];
  const chosen = {};
  const count = make("output", { className: "count" });
  const show = () => {
    for (const row of rows)
      row.hidden = Object.entries(chosen).some(([name, value]) => value && !row.dataset[name].split(", ").includes(value));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  const filters = ["section", "method", "verdict"].map((name) => {
    const values = [...new Set(rows.flatMap((row) => row.dataset[name].split(", ")))].filter(Boolean);
    const select = make("select", { name }, make("option", { value: "", textContent: "all" }));
    select.append(...values.map((value) => make("option", { value, textContent: value })));
    select.addEventListener("change", () => {
      chosen[name] = select.value;
      show();
    });
    return make("label", {}, `${name} `, select);
  });
  figure.querySelector("figcaption").after(make("div", { className: "filters" }, ...filters, count));
  show();

  const heads = [...figure.querySelectorAll("thead th")];
  heads.forEach((head, place) => {
    const button = make("button", { type: "button", className: "sort" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = rows.map((row) => [key(row.cells[place]), row]);
      keyed.sort(([a], [b]) => (down ? order(b, a) : order(a, b)));
      body.append(...keyed.map(([, row]) => row));
    });
  });
  // A link to a row that is filtered away shows it.
  const reveal = () => {
    const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!row || !row.hidden || !rows.includes(row)) return;
    for (const select of figure.querySelectorAll(".filters select")) chosen[select.name] = select.value = "";
    show();
    row.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
}
