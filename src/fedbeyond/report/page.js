"use strict";
// Show figures one at a time, as tabs (without this script: as a list), and offer each as a PNG drawn from its SVG.
// Show values under the pointer, hide and show lines, sort and filter tables.
const gallery = document.getElementById("gallery");
const slides = gallery ? [...gallery.children] : [];

function png(slide) {
  const svg = slide.querySelector("a[download$='.svg']");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "PNG";
  button.addEventListener("click", () => {
    const picture = new Image();
    picture.addEventListener("load", () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [picture.naturalWidth * 2.5, picture.naturalHeight * 2.5];
      const context = canvas.getContext("2d");
      context.fillStyle = "#fff";
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(picture, 0, 0, canvas.width, canvas.height);
      const link = document.createElement("a");
      link.download = svg.download.replace(/svg$/, "png");
      link.href = canvas.toDataURL("image/png");
      link.click();
    });
    picture.src = svg.href;
  });
  svg.after(" ", button);
}

function tabs() {
  const list = document.createElement("div");
  list.className = "tabs";
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-labelledby", "h-figures");
  const buttons = slides.map((slide) => {
    const button = document.createElement("button");
    button.type = "button";
    button.id = `tab-${slide.id}`;
    button.textContent = slide.dataset.title;
    button.setAttribute("role", "tab");
    button.setAttribute("aria-controls", slide.id);
    slide.setAttribute("role", "tabpanel");
    slide.setAttribute("aria-labelledby", button.id);
    list.append(button);
    return button;
  });
  function show(chosen) {
    slides.forEach((slide, index) => {
      slide.hidden = index !== chosen;
      buttons[index].setAttribute("aria-selected", index === chosen);
      buttons[index].tabIndex = index === chosen ? 0 : -1;
    });
  }
  list.addEventListener("click", (event) => {
    if (buttons.includes(event.target)) show(buttons.indexOf(event.target));
  });
  list.addEventListener("keydown", (event) => {
    const last = buttons.length - 1;
    const index = buttons.indexOf(document.activeElement);
    const next = { ArrowRight: index === last ? 0 : index + 1, ArrowLeft: index === 0 ? last : index - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(next);
    buttons[next].focus();
  });
  function followHash() {
    const index = slides.findIndex((slide) => `#${slide.id}` === decodeURIComponent(location.hash));
    if (index >= 0) {
      show(index);
      slides[index].scrollIntoView();
    }
  }
  gallery.before(list);
  show(0);
  addEventListener("hashchange", followHash);
  followHash();
}

slides.forEach(png);
if (slides.length > 1) tabs();

const MIN_FILTERED = 8; // rows of a table that can be filtered
const NEAR = 24; // pixels from the pointer to a point of a line
const UNITS = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 };

// the number that a cell begins with (79.1 ± 2.0, < 0.001, 1,002, 4.1 MB), or null
function numberOf(text) {
  const found = /^(<\s*)?([+-]?[\d,]*\.?\d+)(?:\s*([kMGT])i?B?\b)?/.exec(text.replace("−", "-"));
  if (!found) return null;
  return Number(found[2].replaceAll(",", "")) * (UNITS[found[3]] || 1) - (found[1] ? 1e-9 : 0);
}

function sortBy(table, heading, direction) {
  const body = table.tBodies[0];
  const place = heading.cellIndex;
  const rows = [...body.rows];
  const fixed = rows.filter((row) => row.classList.contains("theirs"));
  const text = (row) => row.cells[place].textContent.trim();
  const numeric = rows.some((row) => numberOf(text(row)) !== null) && place > 0;
  const key = (row) => (numeric ? numberOf(text(row)) : text(row) === "-" ? null : text(row));
  const factor = direction === "descending" ? -1 : 1;
  const order = (first, second) => {
    const [a, b] = [key(first), key(second)];
    if (a === null || b === null) return (a === null) - (b === null);
    return factor * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
  };
  body.append(...rows.filter((row) => !fixed.includes(row)).sort(order), ...fixed);
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
}

function sortable(table) {
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const first = heading.cellIndex === 0 ? "ascending" : "descending";
      const other = first === "ascending" ? "descending" : "ascending";
      sortBy(table, heading, heading.getAttribute("aria-sort") === first ? other : first);
    });
  }
}

function filterable(table) {
  const rows = [...table.tBodies[0].rows];
  const tools = document.createElement("div");
  const label = document.createElement("label");
  const input = document.createElement("input");
  const count = document.createElement("span");
  tools.className = "tools";
  input.type = "search";
  label.append("Filter rows", input);
  count.setAttribute("role", "status");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    count.textContent = input.value ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows` : "";
  });
  tools.append(label, count);
  table.closest(".scroll").before(tools);
}

// on a phone the average is the first column of numbers
function averageFirst(table) {
  const narrow = matchMedia("(max-width: 40rem)");
  function arrange() {
    for (const row of table.rows) {
      const average = row.querySelector(".average");
      if (narrow.matches) row.cells[0].after(average);
      else row.append(average);
    }
  }
  narrow.addEventListener("change", arrange);
  arrange();
}

// buttons that hide and show the lines of a figure
function switches(slide) {
  const names = [...new Set([...slide.querySelectorAll("[data-line]")].map((part) => part.dataset.line))];
  if (names.length < 2) return;
  const tools = document.createElement("div");
  tools.className = "tools";
  tools.setAttribute("role", "group");
  tools.setAttribute("aria-label", "Lines of this figure");
  tools.append("Lines:");
  for (const name of names) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.setAttribute("aria-pressed", true);
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", shown);
      for (const part of slide.querySelectorAll("[data-line]")) if (part.dataset.line === name) part.style.display = shown ? "" : "none";
    });
    tools.append(button);
  }
  slide.querySelector(".picture").before(tools);
}

// the value of the shape under the pointer, or of the nearest point of a line
function values(svg, tip) {
  const shapes = new Map();
  const lines = [];
  for (const part of svg.querySelectorAll("[data-texts]")) {
    const texts = JSON.parse(part.dataset.texts);
    const drawn = [...part.querySelectorAll("path, use")].filter((shape) => !shape.closest("defs"));
    if (part.dataset.line && texts.length) {
      const points = [...(drawn[0].getAttribute("d") || "").matchAll(/[ML] (\S+) (\S+)/g)];
      lines.push({ part, points: points.map((point, place) => ({ x: +point[1], y: +point[2], text: texts[place] })) });
    } else {
      texts.forEach((text, place) => drawn[place] && shapes.set(drawn[place], text));
    }
  }
  function nearest(event) {
    let best = { distance: NEAR };
    const matrix = svg.getScreenCTM();
    for (const line of lines) {
      if (line.part.style.display === "none") continue;
      for (const point of line.points) {
        const distance = Math.hypot(matrix.a * point.x + matrix.e - event.clientX, matrix.d * point.y + matrix.f - event.clientY);
        if (distance < best.distance) best = { distance, text: point.text };
      }
    }
    return best.text;
  }
  svg.addEventListener("pointermove", (event) => {
    const text = shapes.get(event.target) || nearest(event);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 12)}px`;
  });
  svg.addEventListener("pointerleave", () => (tip.hidden = true));
}

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
for (const kind of ["scroll", "click"]) addEventListener(kind, () => (tip.hidden = true), { capture: true, passive: true });
slides.forEach(switches);
for (const svg of document.querySelectorAll(".picture svg")) values(svg, tip);
for (const table of document.querySelectorAll("table")) {
  if (table.tBodies[0].rows.length > 1 && !table.matches(".comparison, .keys")) sortable(table);
  if (table.tBodies[0].rows.length >= MIN_FILTERED) filterable(table);
  if (table.matches(".scores")) averageFirst(table);
}
