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
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
