"use strict";
(() => {
  const names = document.getElementById("names").children;
  const tip = document.getElementById("tip");
  const unit = (ns) =>
    ns < 1e4 ? ns + " ns" : ns < 1e6 ? (ns / 1e3).toFixed(1) + " µs"
      : ns < 1e10 ? (ns / 1e6).toFixed(2) + " ms" : (ns / 1e9).toFixed(2) + " s";
  const line = (tag, text) => {
    const part = document.createElement(tag);
    part.textContent = text;
    tip.append(part);
  };
  const show = (event) => {
    const span = event.target.closest && event.target.closest("[data-d]");
    tip.hidden = !span;
    if (!span) return;
    const [start, duration, count, name, shade] = span.dataset.d.split(" ").map(Number);
    tip.replaceChildren();
    const kind = names[shade].textContent;
    line("b", name < 0 ? kind : names[name].textContent);
    line("span", (name < 0 ? "" : kind + ", ") + unit(duration) + " from " + unit(start) +
      (count > 1 ? ", " + count + " drawn as one" : ""));
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight < document.documentElement.clientHeight;
    tip.style.left = Math.max(4, Math.min(event.clientX + 12, room)) + "px";
    tip.style.top = (fits ? below : event.clientY - tip.offsetHeight - 10) + "px";
  };
  const zoom = document.getElementById("zoom");
  const zooms = document.getElementById("zooms");
  const space = document.querySelector("svg").namespaceURI;
  let step, from, until;
  const made = (parent, tag, name) => {
    const part = document.createElement(tag);
    part.className = name;
    parent.append(part);
    return part;
  };
  const draw = () => {
    const length = Number(step.dataset.length);
    zoom.hidden = false;
    zoom.querySelector("b").textContent = "Step " + step.dataset.of;
    zoom.querySelector("span").textContent =
      until - from < length ? unit(from) + " to " + unit(until) + " of " + unit(length) : unit(length);
    const lanes = zoom.querySelector("div");
    lanes.replaceChildren();
    for (const lane of step.children) {
      const row = made(lanes, "div", "lane " + lane.className);
      made(row, "div", "name").textContent = lane.title;
      const bar = document.createElementNS(space, "svg");
      bar.setAttribute("class", "bar");
      made(row, "div", "plot").append(bar);
      for (const span of lane.textContent.split(";")) {
        const [start, duration, count, name, shade] = span.split(" ").map(Number);
        if (start >= until || start + duration <= from) continue;
        const rect = document.createElementNS(space, "rect");
        rect.setAttribute("class", "s" + shade);
        rect.setAttribute("x", 100 * (start - from) / (until - from) + "%");
        rect.setAttribute("width", 100 * duration / (until - from) + "%");
        rect.setAttribute("height", "100%");
        rect.dataset.d = [start, duration, count, name, shade].join(" ");
        bar.append(rect);
      }
    }
  };
  const whole = () => { [from, until] = [0, Math.max(1, Number(step.dataset.length))]; draw(); };
  const nearer = (plot, x) => {
    const box = plot.getBoundingClientRect();
    const part = (until - from) / 4;
    const start = Math.round(from + (until - from) * (x - box.left) / box.width - part / 2);
    if (part < 100) return;
    from = Math.min(Math.max(0, start), Number(step.dataset.length) - Math.round(part));
    until = from + Math.round(part);
    draw();
  };
  const sort = (head) => {
    const at = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => {
      const cell = row.cells[at];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows];
    const depth = (row) => Number(row.dataset.depth || 0);
    let next = 0;
    const level = (deep) => {
      const all = [];
      while (next < rows.length && depth(rows[next]) >= deep) {
        const row = rows[next++];
        all.push([row, level(depth(row) + 1)]);
      }
      all.sort((a, b) => compare(value(a[0]), value(b[0])));
      return all.flatMap(([row, inner]) => [row, ...inner]);
    };
    body.append(...level(0));
  };
  document.addEventListener("click", (event) => {
    const on = (what) => event.target.closest && event.target.closest(what);
    const bar = on("[data-step]");
    if (bar) {
      step = zooms.querySelector('[data-of="' + bar.dataset.step + '"]');
      if (step) whole();
    } else if (on("#zoom .whole")) whole();
    else if (on("#zoom .plot")) nearer(on("#zoom .plot"), event.clientX);
    else if (on("th[data-sort]")) sort(on("th[data-sort]"));
  });
  document.documentElement.classList.add("scripts");
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
