"use strict";
(() => {
  const tip = document.getElementById("tip");
  let on = null;
  // On a narrow screen a row's cells stand below each other, each beside its column's name.
  for (const table of document.querySelectorAll(".wide table:not(.trials)")) {
    const names = [...(table.tHead?.rows[0]?.cells ?? [])].map((cell) => cell.textContent);
    if (names.length < 3) continue;
    table.classList.add("stacks");
    for (const row of table.querySelectorAll("tbody tr, tfoot tr"))
      [...row.cells].forEach((cell, at) => { cell.dataset.name = names[at] ?? ""; });
  }
  // The words of a point: its own, or those of its trial's row below their column's names.
  const say = (mark) => {
    if (mark.dataset.tip) return [mark.dataset.tip, ""];
    const row = document.getElementById(mark.dataset.t);
    const names = [...row.closest("table").tHead.rows[0].cells].map((cell) => cell.textContent);
    const cells = [...row.cells].map((cell) => cell.textContent.trim());
    const config = names.slice(3, -1).map((name, at) => name + "=" + cells[at + 3]);
    const remark = cells[cells.length - 1];
    const time = cells[1] ? cells[1] + " µs" : "no time";
    return ["trial " + cells[0] + ": " + time, [row.closest("table").dataset.family, ...config].join(" ") + (remark ? "; " + remark : "")];
  };
  const hide = () => { if (on) on.classList.remove("on"); on = null; tip.replaceChildren(); };
  const show = (mark) => {
    if (on === mark) return;
    hide();
    on = mark;
    mark.classList.add("on");
    const [head, rest] = say(mark);
    const bold = document.createElement("b");
    bold.textContent = head;
    tip.append(bold, rest);
    const at = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(at.left + 14, innerWidth - own.width - 6)) + "px";
    tip.style.top = (at.bottom + own.height + 12 > innerHeight ? at.top - own.height - 8 : at.bottom + 8) + "px";
  };
  // A link into a closed part opens it.
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    target.scrollIntoView({ block: "center" });
  };
  const go = (mark) => {
    const to = mark.dataset.to || mark.dataset.t;
    if (to && document.getElementById(to)) { hide(); if (location.hash === "#" + to) reveal(); else location.hash = to; }
  };
  for (const svg of document.querySelectorAll("svg.chart")) {
    for (const title of svg.querySelectorAll("title")) {  // or the browser shows it above the point's own words
      if (title.parentNode === svg) svg.setAttribute("aria-label", title.textContent);
      else title.parentNode.dataset.tip = title.textContent;
      title.remove();
    }
    svg.removeAttribute("aria-labelledby");
    const marks = [...svg.querySelectorAll("[data-t],[data-tip]")];
    const across = (mark) => +(mark.getAttribute("cx") || mark.getAttribute("x"));
    marks.sort((a, b) => across(a) - across(b));
    svg.addEventListener("pointermove", (event) => {
      const mark = event.target.closest("[data-t],[data-tip]");
      if (mark) show(mark); else hide();
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("click", (event) => { const mark = event.target.closest("[data-t],[data-tip]"); if (mark) go(mark); });
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
      if (by && marks.length) {
        const from = on ? marks.indexOf(on) : by > 0 ? -1 : marks.length;
        show(marks[Math.max(0, Math.min(marks.length - 1, from + by))]);
        event.preventDefault();
      } else if (event.key === "Enter" && on) go(on);
      else if (event.key === "Escape") hide();
    });
  }
  for (const item of document.querySelectorAll(".legend [data-f]")) {
    const part = item.closest("section,details.layer");
    const light = (yes) => {
      for (const svg of part.querySelectorAll("svg.chart")) {
        svg.classList.toggle("dim", yes);
        for (const one of svg.querySelectorAll("." + item.dataset.f)) one.classList.toggle("lit", yes);
      }
    };
    item.addEventListener("pointerenter", () => light(true));
    item.addEventListener("pointerleave", () => light(false));
  }
  addEventListener("hashchange", reveal);
  addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details.layer")) part.open = true; });
  addEventListener("scroll", hide, { passive: true });
  reveal();
})();
